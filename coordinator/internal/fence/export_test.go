package fence

// PartitionOf is where Kafka keeps what it decided about an id.
var PartitionOf = partitionOf
