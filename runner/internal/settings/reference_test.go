package settings

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestTheReferenceListsEveryKeyAsItIs(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range Keys() {
		def := "—"
		switch {
		case k.Required:
			def = "required"
		case k.Default != nil:
			def = "`" + *k.Default + "`"
		}
		if row := fmt.Sprintf("| `%s` | %s | %s |\n", k.Name, def, k.Doc); !strings.Contains(string(text), row) {
			t.Errorf("docs/reference.md lacks this row:\n%s", row)
		}
	}
}
