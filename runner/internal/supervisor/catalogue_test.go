package supervisor

import (
	"testing"

	"github.com/fencepost-io/fencepost/runner/internal/session"
	"github.com/fencepost-io/fencepost/runner/internal/settings"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// A plugin is upgraded by another file under its name: only a connector that names a checksum insists on one.
func TestAFileIsPinnedOnlyWhereTheConnectorSaysSo(t *testing.T) {
	var c catalogue
	c.set([]Plugin{{Description: &source.Description{Name: "p", Version: "1.0.0", Types: []source.Type{{Name: "t"}}}, Path: "/p", SHA256: "aa"}})
	ref := session.PluginRef{Name: "p", Version: "1.0.0", Type: "t"}
	for _, want := range []string{"", "aa"} {
		ref.SHA256 = want
		if p, _, err := c.find(ref); err != nil || p.Pin != want {
			t.Errorf("a grant that asks for %q: pinned to %q, %v", want, p.Pin, err)
		}
		if p, _, problem := c.choose(&settings.Settings{Type: "t", PluginSHA256: want}); problem != nil || p.Pin != want {
			t.Errorf("a configuration that asks for %q: pinned to %q, %v", want, p.Pin, problem)
		}
	}
	ref.SHA256 = "bb"
	if _, _, err := c.find(ref); err == nil {
		t.Error("another checksum was found")
	}
}
