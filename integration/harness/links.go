package harness

import (
	"github.com/fencepost-io/fencepost/integration/kafka"
	"github.com/fencepost-io/fencepost/integration/proxy"
)

// Links are ways to a broker that can be cut one by one: whoever gets the address of a link as its bootstrap server stays on it.
type Links struct {
	*kafka.Broker
	// Links lead to the broker.
	Links []*proxy.Proxy
}

// LinkedKafka starts a real broker for one test, with n links besides its own address.
func LinkedKafka(t T, n int) *Links {
	t.Helper()
	return LinkedKafkaWith(t, n, kafka.Options{})
}

// LinkedKafkaWith is LinkedKafka for a broker with other options. Its links can hold single requests back.
func LinkedKafkaWith(t T, n int, opts kafka.Options) *Links {
	t.Helper()
	l := &Links{}
	for range n {
		p, err := proxy.StartKafka("")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		l.Links, opts.Links = append(l.Links, p), append(opts.Links, p.Addr())
	}
	l.Broker = OwnKafka(t, opts)
	for i, p := range l.Links {
		p.SetTarget(l.Behind(i))
	}
	return l
}
