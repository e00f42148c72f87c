// Package integration holds the promises made to users, one test file each, proved with real parts: processes that are killed, a real broker, real files.
//
// The test bed below it:
//
//   - kafka starts and stops real Apache Kafka brokers.
//   - harness builds the binaries, starts coordinators, runners and plugins as processes, and checks that nothing is left of them.
//   - soak lets faults loose at random on all of it, and has Kafka's own consumer judge.
//   - proxy is a network that can be cut; puppet is a runner that runs nothing; scene puts coordinators, runners and watched connectors together for what fails.
//   - reader is the one verdict: what a read_committed reader sees, and the stored offset beside it.
//   - cmd has the programs behind `make kafka`, `make bench` and `make soak`.
//
// A test polls real state up to a deadline, and waits for a time only where an outage has a length.
package integration
