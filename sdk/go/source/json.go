package source

// JSON is one JSON value as text. Source partitions and offsets are JSON objects whose values are texts, numbers, booleans or null.
type JSON []byte
