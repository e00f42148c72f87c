package state

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// What a runner says of a task has to reach its users: a new field of TaskStatus that nobody shows is a mistake.
func TestEveryFieldOfATaskStatusIsShown(t *testing.T) {
	elsewhere := map[protoreflect.Name]bool{"lease": true, "seq": true, "state": true, "retry_in_ms": true}
	m := &runnerv1.TaskStatus{Notices: []string{"x: permission denied"}, Rewinds: map[string]uint64{"broker": 1}}
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case elsewhere[f.Name()] || f.IsList() || f.IsMap():
			continue
		case f.Kind() == protoreflect.StringKind:
			m.ProtoReflect().Set(f, protoreflect.ValueOfString("text of "+string(f.Name())))
		case f.Kind() == protoreflect.BoolKind:
			m.ProtoReflect().Set(f, protoreflect.ValueOfBool(true))
		case f.Kind() == protoreflect.Uint32Kind:
			m.ProtoReflect().Set(f, protoreflect.ValueOfUint32(uint32(f.Number())+1000))
		default:
			m.ProtoReflect().Set(f, protoreflect.ValueOfUint64(uint64(f.Number())+1000))
		}
	}
	got := statusOf(m).TaskStatus
	if got.Notices[0] != "x: permission denied" || got.Rewinds["broker"] != 1 || !got.CaughtUp || got.Phase != "text of phase" || got.DroppedReason != "text of dropped_reason" ||
		got.Error != "text of error" || got.Cause != "text of cause" || got.PluginVersion != "text of plugin_version" || got.PluginSHA256 != "text of plugin_sha256" {
		t.Errorf("shown: %+v", got)
	}
	for name, n := range map[protoreflect.Name]uint64{
		"attempt": uint64(got.Attempt), "budget_left": uint64(got.BudgetLeft), "records": got.Records, "bytes": got.Bytes, "commits": got.Commits, "aborts": got.Aborts,
		"dropped": got.Dropped, "open_records": got.OpenRecords, "open_age_ms": got.OpenAgeMs,
	} {
		if want := uint64(fields.ByName(name).Number()) + 1000; n != want {
			t.Errorf("%s is shown as %d, not %d", name, n, want)
		}
	}
}

func TestNoticesAreBounded(t *testing.T) {
	m := &runnerv1.TaskStatus{}
	for range 100 {
		m.Notices = append(m.Notices, strings.Repeat("é", 1000))
	}
	got := statusOf(m).Notices
	if len(got) != mostNotices || len(got[0]) > mostNoticeBytes+len("…") {
		t.Errorf("%d notices of %d bytes are kept", len(got), len(got[0]))
	}
}
