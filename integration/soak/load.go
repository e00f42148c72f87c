package soak

import (
	"maps"
	"path/filepath"
	"strconv"
)

// load is one connector of the world. Its topic has its name, and its plugin is the generator, whose records are numbered from 1 on in each source partition.
type load struct {
	name string
	// sources is how many source partitions there are, partitions how many its topic has.
	sources    int
	partitions int32
	config     map[string]string
	// tasks are the values of tasks.max that reconfigurations choose from; the first is that of the beginning.
	tasks []int
}

// topicSettings are those of every topic of records. A record of a megabyte is larger than Kafka's own default.
var topicSettings = map[string]*string{"max.message.bytes": new("4194304")}

// loads are the five behaviours. Between them they use three of the boundaries, transactions that expire soon and such that don't, and sources that forget what they were told is committed.
var loads = []load{
	{name: "fast", sources: 4, partitions: 6, tasks: []int{2, 1, 4}, config: map[string]string{
		"rate": "600", "size": "100B", "batch.records": "200", "producer.override.transaction.timeout.ms": "6000",
	}},
	{name: "slow", sources: 1, partitions: 1, tasks: []int{1}, config: map[string]string{
		"rate": "4", "size": "1KiB", "transaction.boundary": "poll",
	}},
	{name: "bursty", sources: 6, partitions: 3, tasks: []int{3, 2, 6}, config: map[string]string{
		"rate": "100", "burst": "2s", "size": "500B", "batch.records": "50", "transaction.boundary": "interval", "transaction.boundary.interval.ms": "1000",
		"producer.override.transaction.timeout.ms": "8000",
	}},
	{name: "huge", sources: 2, partitions: 2, tasks: []int{1, 2}, config: map[string]string{
		"rate": "1", "size": "100KiB", "size.max": "1MiB", "batch.records": "4",
	}},
	{name: "many", sources: 64, partitions: 24, tasks: []int{2, 3, 1}, config: map[string]string{
		"rate": "150", "size": "200B", "batch.records": "10", "transaction.boundary.max.ms": "200",
	}},
}

// settings is a connector's whole configuration. Another variant is another configuration that does the same.
func (l *load) settings(forget string, tasks, variant int) map[string]string {
	all := maps.Clone(l.config)
	all["connector.class"], all["topic"], all["partitions"], all["tasks.max"] = "generator", l.name, strconv.Itoa(l.sources), strconv.Itoa(tasks)
	if l.name != "many" {
		all["forget.dir"] = filepath.Join(forget, l.name)
	}
	all["headers"] = strconv.Itoa(variant % 3)
	return all
}

func loadOf(name string) *load {
	for i := range loads {
		if loads[i].name == name {
			return &loads[i]
		}
	}
	return nil
}
