package app

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// summary is what a file was read as, one line.
func summary(c *connectorFile) string {
	var problems []string
	for _, p := range c.Problems {
		problems = append(problems, p.GetKey()+": "+p.GetMessage())
	}
	return fmt.Sprintf("name=%s config=%v problems=%q", c.Name, c.Config, problems)
}

func TestConnectorFilesAreReadAsWritten(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"yaml":                {"name: a\nconfig: {tasks.max: 3, rate: 1.50, on: true, empty: ''}", []string{"name=a config=map[empty: on:true rate:1.50 tasks.max:3] problems=[]"}},
		"json with tabs":      {"{\n\t\"name\": \"a\",\n\t\"config\": {\"x\": 1e3, \"y\": \"a\\tb\"}\n}", []string{"name=a config=map[x:1e3 y:a\tb] problems=[]"}},
		"connect's flat form": {`{"name": "a", "connector.class": "file"}`, []string{"name=a config=map[connector.class:file name:a] problems=[]"}},
		"name inside":         {"config: {name: a}", []string{"name=a config=map[name:a] problems=[]"}},
		"several documents":   {"name: a\nconfig: {}\n---\nname: b\nconfig: {}", []string{"name=a config=map[] problems=[]", "name=b config=map[] problems=[]"}},
		"everything wrong at once": {
			"name: a\nowner: me\nconfig:\n  x: [1]\n  y: null\n  z: 1\n  z: 2\n",
			[]string{`name=a config=map[z:1] problems=["owner: line 2: unknown key beside config" "z: line 7: the key appears twice" "x: line 4: the value must be a text, a number or true/false" "y: line 5: the value is null"]`},
		},
		"two names":        {"name: a\nconfig: {name: b}", []string{`name=a config=map[name:b] problems=["name: \"b\" under config and \"a\" beside it"]`}},
		"no name":          {"config: {}", []string{`name= config=map[] problems=["name: missing"]`}},
		"a long name":      {"name: " + strings.Repeat("é", 101) + "\nconfig: {}", []string{"name=" + strings.Repeat("é", 101) + ` config=map[] problems=["name: is 202 bytes long"]`}},
		"a longest name":   {"name: " + strings.Repeat("é", 100) + "\nconfig: {}", []string{"name=" + strings.Repeat("é", 100) + ` config=map[] problems=[]`}},
		"a name of lines":  {`{"name": "a\nb", "config": {}}`, []string{"name=a\nb config=map[] problems=[\"name: has the control character '\\\\n'\"]"}},
		"a null for name":  {"name: null\nconfig: {}", []string{`name= config=map[] problems=["name: line 1: the value is null"]`}},
		"empty":            {"", []string{`name= config=map[] problems=[": the file is empty"]`}},
		"a list":           {"[1]", []string{`name= config=map[] problems=[": a connector is a map"]`}},
		"broken":           {"{", []string{`name= config=map[] problems=[": not YAML or JSON: line 1: did not find expected node content"]`}},
		"config is a text": {"name: a\nconfig: x", []string{`name=a config=map[] problems=["config: line 2: not a map"]`}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range parseConnectors("f", []byte(tc.text)) {
				// Problems of values come in no order: a map was walked.
				got = append(got, summary(sorted(c)))
			}
			for i := range tc.want {
				tc.want[i] = strings.TrimSpace(tc.want[i])
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("read (-want +got):\n%s", diff)
			}
		})
	}
}

// sorted brings problems into the order of the test's expectation: those found first by place, then by key.
func sorted(c *connectorFile) *connectorFile {
	for i := 1; i < len(c.Problems); i++ {
		for j := i; j > 0 && strings.Contains(c.Problems[j].GetMessage(), "value") && strings.Contains(c.Problems[j-1].GetMessage(), "value") && c.Problems[j].GetKey() < c.Problems[j-1].GetKey(); j-- {
			c.Problems[j], c.Problems[j-1] = c.Problems[j-1], c.Problems[j]
		}
	}
	return c
}

func TestOneNameForOneConnector(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"1.yaml", "2.yml"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("name: a\nconfig: {}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := readConnectorFiles([]string{dir}, strings.NewReader(""))
	if err != nil || len(all) != 2 {
		t.Fatalf("%d files, %v", len(all), err)
	}
	if len(all[1].Problems) != 1 || !strings.Contains(all[1].Problems[0].GetMessage(), "1.yaml") {
		t.Errorf("problems of the second: %v", all[1].Problems)
	}
}

func TestFilesThatCannotBeReadAreWrongUsage(t *testing.T) {
	for _, paths := range [][]string{nil, {"/does/not/exist"}, {t.TempDir()}} {
		if _, err := readConnectorFiles(paths, strings.NewReader("")); codeOf(err) != exitUsage {
			t.Errorf("%v: %v", paths, err)
		}
	}
}

func FuzzConnectorFiles(f *testing.F) {
	f.Add("name: a\nconfig: {x: 1}")
	f.Add(`{"name":"a","config":{"x":[{}]}}`)
	f.Add("---\n---\n? [a]: b")
	f.Add("a: &a [*a]")
	f.Fuzz(func(_ *testing.T, text string) { parseConnectors("f", []byte(text)) })
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
