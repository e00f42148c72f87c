package app

import (
	"strings"
	"testing"
)

func TestTransactionsShowWhoHasThemAndHowTheyEnded(t *testing.T) {
	address := serve(t, &fakeControl{})
	code, out, errOut := run("transactions", "--coordinator", address)
	if code != exitDone {
		t.Fatal(code, errOut)
	}
	for _, want := range []string{"fencepost.c.orders.0", "1.5s", "out-1", "5/2", "r1", "gone (deleted)", "out-3 from offset 41, before 99", "unproven: nobody knows"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q isn't in:\n%s", want, out)
		}
	}
	if code, out, _ = run("transactions", "--coordinator", address, "-o", "json"); code != exitDone || !strings.Contains(out, `"first_offset"`) {
		t.Errorf("%d: %s", code, out)
	}
}

func TestADirectionNeedsWhoSaysToKnow(t *testing.T) {
	address := serve(t, &fakeControl{})
	id := "fencepost.c.gone.1"
	for _, args := range [][]string{{"--commit"}, {"--commit", "--abort", "--i-know"}, {"--partition", "out"}, {"--partition", "-3"}, {"--partition", "out-x"}} {
		if code, _, errOut := run(append([]string{"transactions", "end", id, "--coordinator", address}, args...)...); code != exitUsage {
			t.Errorf("%v: %d %s", args, code, errOut)
		}
	}
	code, out, errOut := run("transactions", "end", id, "--partition", "some-topic-3", "--commit", "--i-know", "--coordinator", address)
	if code != exitDone || !strings.Contains(out, "some-topic-3 from offset 41: ended as committed") {
		t.Errorf("%d: %s%s", code, out, errOut)
	}
}
