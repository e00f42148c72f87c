package source

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config is a connector's configuration after CheckConfig found no mistake in it, with the defaults filled in. The getters return the zero value for a key that isn't set, and
// panic for a value of another type: the key is then declared wrongly in Type.Config. Printing a Config shows its keys alone, since some values are secrets.
type Config map[string]string

// WithDefaults returns config with the defaults of t.
func WithDefaults(t Type, config map[string]string) Config {
	c := make(Config, len(config)+len(t.Config))
	for _, k := range t.Config {
		if k.Default != nil {
			c[k.Name] = *k.Default
		}
	}
	maps.Copy(c, config)
	return c
}

// Has says whether the key is set, or has a default.
func (c Config) Has(key string) bool {
	_, ok := c[key]
	return ok
}

// String returns a text.
func (c Config) String(key string) string { return c[key] }

// Secret returns a password, which prints as ***.
func (c Config) Secret(key string) Secret { return Secret(c[key]) }

// Bool returns a truth value.
func (c Config) Bool(key string) bool { return get(c, key, strconv.ParseBool) }

// Int returns a whole number: of an Int or a Long.
func (c Config) Int(key string) int { return int(c.Int64(key)) }

// Int64 returns a whole number: of an Int or a Long.
func (c Config) Int64(key string) int64 { return get(c, key, parseInt64) }

// Float64 returns a decimal number.
func (c Config) Float64(key string) float64 { return get(c, key, parseFloat64) }

// List returns the texts of a list; nil where it is empty.
func (c Config) List(key string) []string { return ParseList(c[key]) }

// Duration returns a duration.
func (c Config) Duration(key string) time.Duration { return get(c, key, ParseDuration) }

// Size returns a number of bytes.
func (c Config) Size(key string) int64 { return get(c, key, ParseSize) }

// Format prints the keys alone (I9).
func (c Config) Format(s fmt.State, _ rune) {
	_, _ = io.WriteString(s, "Config"+fmt.Sprint(slices.Sorted(maps.Keys(c))))
}

// Secret is a text that no format prints (I9). Convert it to string to use it.
type Secret string

// Format prints ***.
func (Secret) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "***") }

// MarshalText keeps it out of JSON.
func (Secret) MarshalText() ([]byte, error) { return []byte("***"), nil }

func get[T any](c Config, key string, parse func(string) (T, error)) T {
	var v T
	text, ok := c[key]
	if !ok {
		return v
	}
	v, err := parse(text)
	if err != nil {
		panic(fmt.Sprintf("configuration key %s was read as a %T: its type in Type.Config is another", key, v))
	}
	return v
}

func parseInt64(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }

func parseFloat64(s string) (float64, error) { return strconv.ParseFloat(s, 64) }

// ParseList splits at commas and drops the white space around each text, and empty texts.
func ParseList(s string) []string {
	var list []string
	for text := range strings.SplitSeq(s, ",") {
		if text = strings.TrimSpace(text); text != "" {
			list = append(list, text)
		}
	}
	return list
}

// ParseDuration reads "250ms", "10s", "5m"; a bare number is milliseconds. A negative duration is an error.
func ParseDuration(s string) (time.Duration, error) {
	var d time.Duration
	if ms, err := strconv.ParseInt(s, 10, 64); err == nil {
		d = time.Duration(ms) * time.Millisecond
		if d/time.Millisecond != time.Duration(ms) {
			return 0, fmt.Errorf("%q is too long for a duration", s)
		}
	} else if d, err = time.ParseDuration(s); err != nil {
		return 0, fmt.Errorf("%q is not a duration such as 250ms, 10s or 5m", s)
	}
	if d < 0 {
		return 0, fmt.Errorf("%q is negative", s)
	}
	return d, nil
}

var sizeUnits = []struct {
	suffix string
	factor int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1},
}

// ParseSize reads "100B", "16KiB" (1,024) or "1MB" (1,000,000); a bare number is bytes.
func ParseSize(s string) (int64, error) {
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || int64(n) > (1<<63-1)/u.factor {
			break
		}
		return int64(n) * u.factor, nil
	}
	return 0, fmt.Errorf("%q is not a size such as 100B, 16KiB or 1MB", s)
}
