// Command spool is a plugin: its connector makes a record of each file that is moved into a folder, in the order of their names.
package main

import (
	"context"
	"os"

	"github.com/fencepost-io/fencepost/sdk/go/serve"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

func main() { serve.Serve(source.New("spool", "1.0.0", spool{})) }

type spool struct{ source.OneTask }

func (spool) Type() source.Type {
	return source.Type{Name: "spool", Summary: "Whole files of a folder, one record each.", Config: []source.Key{
		{Name: "folder", Type: source.String, Required: true, Doc: "Files are moved into it when they are complete, and named in order."},
		{Name: "topic", Type: source.String, Required: true, Doc: "The topic that the records go to."},
	}}
}

func (spool) Open(_ context.Context, t *source.Task) (source.Reader, error) {
	folder := t.Config().String("folder")
	p, err := t.Partition(source.Fields{"folder": folder})
	if err != nil {
		return nil, err
	}
	stored, _ := p.Stored()
	last, _ := stored.Text("file") // empty where nothing is stored
	return &reader{folder, last, source.Record{Partition: p, Topic: t.Config().String("topic")}}, nil
}

type reader struct {
	folder, last string
	record       source.Record
}

func (r *reader) Read(_ context.Context, out *source.Records) error {
	files, err := os.ReadDir(r.folder) // sorted by name
	for _, f := range files {
		if err != nil || out.Full() {
			return err // where it is nil, Read is called again at once
		}
		if f.Name() > r.last {
			r.record.Key, r.record.Offset = []byte(f.Name()), source.Fields{"file": f.Name()}
			if r.record.Value, err = os.ReadFile(r.folder + "/" + f.Name()); err != nil {
				return err
			}
			err, r.last = out.Add(r.record), f.Name()
		}
	}
	if err != nil {
		return err
	}
	return out.Idle()
}

func (*reader) Close() error { return nil }
