package kafka

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// Libs is the folder of Apache Kafka's jars: what FENCEPOST_KAFKA_LIBS names, else bin/kafka-libs of this tree, which is filled first where it isn't there.
func Libs(ctx context.Context) (string, error) {
	if dir := os.Getenv("FENCEPOST_KAFKA_LIBS"); dir != "" {
		if jars, _ := filepath.Glob(filepath.Join(dir, "kafka_*.jar")); len(jars) == 0 {
			return "", fmt.Errorf("FENCEPOST_KAFKA_LIBS: no kafka_*.jar in %s", dir)
		}
		return filepath.Abs(dir)
	}
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "bin", "kafka-libs")
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return dir, Fetch(ctx, dir)
	}
	return dir, nil
}

// Fetch fills a folder with the jars that pom.xml names, by Maven. The folder appears whole or not at all, and replaces an earlier one.
func Fetch(ctx context.Context, dir string) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("folder of Kafka's jars: %w", err)
	}
	fresh, err := os.MkdirTemp(filepath.Dir(dir), ".kafka-libs-")
	if err != nil {
		return fmt.Errorf("folder of Kafka's jars: %w", err)
	}
	defer os.RemoveAll(fresh)
	mvn := exec.CommandContext(ctx, "mvn", "-q", "-B", "-f", filepath.Join(root, "integration", "kafka", "pom.xml"),
		"dependency:copy-dependencies", "-DoutputDirectory="+fresh)
	if out, err := mvn.CombinedOutput(); err != nil {
		return fmt.Errorf("fetch Kafka's jars: %w\n%s", err, out)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("folder of Kafka's jars: %w", err)
	}
	if err := os.Rename(fresh, dir); err != nil {
		return fmt.Errorf("folder of Kafka's jars: %w", err)
	}
	return nil
}

// moduleRoot is the top of this tree: programs that use this package are run from source.
func moduleRoot() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("where the source of package kafka is: unknown")
	}
	return filepath.Dir(filepath.Dir(filepath.Dir(file))), nil
}
