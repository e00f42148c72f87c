import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.regex.*;
import java.util.stream.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * The verdict of Apache Kafka's own consumer (read_committed) on topics of numbered records: java Verdict.java BOOTSTRAP TOPIC=OFFSETS_TOPIC...
 *
 * A record's value is SOURCE:NUMBER and dots; each source partition counts from 1. The offsets topic has Kafka Connect's form: key ["CONNECTOR",{"generator":"SOURCE"}], value {"n":NUMBER}.
 * It prints a line for each Kafka partition and source partition, one for each source partition, one for each Kafka partition whose end a read_committed reader can't reach, and "read to the end" last.
 */
public class Verdict {
  static final Pattern KEY = Pattern.compile("\\{\"generator\":\"(\\d+)\"\\}");
  /** An idle task that no coordinator answers writes such a key, to see whether its transactional id is still its own. It is no source partition. */
  static final String OWN = "\"fencepost.task\"";
  static final Pattern OFFSET = Pattern.compile("\\{\"n\":(\\d+)\\}");
  static final Duration POLL = Duration.ofMillis(500);
  /** After so many polls that brought no partition any further the rest can't be read. */
  static final int PATIENCE = 40;

  /** What was read of one source partition. */
  static class Source {
    final BitSet seen = new BitSet();
    long count, doubled, disordered, last;
    final SortedMap<Integer, long[]> in = new TreeMap<>(); // Kafka partition: count, first, last, out of order

    void take(int partition, long n) {
      long[] here = in.computeIfAbsent(partition, p -> new long[] {0, n, 0, 0});
      if (seen.get((int) n)) doubled++;
      else if (n < here[2]) { disordered++; here[3]++; }
      seen.set((int) n);
      count++;
      here[0]++;
      here[2] = n;
      last = Math.max(last, n);
    }

    long missing() { return last - seen.cardinality(); }
  }

  public static void main(String[] args) {
    Map<String, Map<Integer, Source>> sources = new LinkedHashMap<>();
    Map<String, String> topicOf = new HashMap<>(); // of an offsets topic
    Map<String, Map<Integer, Long>> stored = new HashMap<>();
    for (int i = 1; i < args.length; i++) {
      String[] pair = args[i].split("=");
      sources.put(pair[0], new TreeMap<>());
      stored.put(pair[0], new HashMap<>());
      topicOf.put(pair[1], pair[0]);
    }
    List<String> topics = new ArrayList<>(sources.keySet());
    topics.addAll(topicOf.keySet());
    read(args[0], topics, r -> {
      String of = topicOf.get(r.topic());
      if (of == null) record(sources.get(r.topic()), r);
      else offset(stored.get(of), r);
    });
    sources.forEach((topic, of) -> {
      of.forEach((name, s) -> s.in.forEach((partition, n) ->
          System.out.printf("partition %s %d source=%d count=%d first=%d last=%d disordered=%d%n", topic, partition, name, n[0], n[1], n[2], n[3])));
      stored.get(topic).keySet().forEach(name -> of.computeIfAbsent(name, s -> new Source()));
      of.forEach((name, s) -> System.out.printf("source %s %d count=%d last=%d missing=%d doubled=%d disordered=%d stored=%d%n",
          topic, name, s.count, s.last, s.missing(), s.doubled, s.disordered, stored.get(topic).getOrDefault(name, 0L)));
    });
    System.out.println("read to the end");
  }

  static void record(Map<Integer, Source> sources, ConsumerRecord<byte[], byte[]> r) {
    String value = text(r.value());
    int colon = value.indexOf(':');
    int source = Integer.parseInt(value.substring(0, colon));
    sources.computeIfAbsent(source, s -> new Source()).take(r.partition(), Long.parseLong(value.substring(colon + 1).replace(".", "")));
  }

  static void offset(Map<Integer, Long> stored, ConsumerRecord<byte[], byte[]> r) {
    if (text(r.key()).contains(OWN)) return;
    Matcher key = KEY.matcher(text(r.key()));
    if (!key.find()) throw new IllegalStateException("key " + text(r.key()));
    int source = Integer.parseInt(key.group(1));
    Matcher offset = r.value() == null ? null : OFFSET.matcher(text(r.value()));
    if (offset == null) stored.remove(source);
    else if (offset.find()) stored.put(source, Long.parseLong(offset.group(1)));
    else throw new IllegalStateException("value " + text(r.value()));
  }

  static String text(byte[] bytes) { return new String(bytes, 0, Math.min(bytes.length, 128), StandardCharsets.UTF_8); }

  static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, String isolation) {
    Properties p = new Properties();
    p.put("bootstrap.servers", bootstrap);
    p.put("isolation.level", isolation);
    p.put("enable.auto.commit", "false");
    return new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  /** Reads each partition of the topics up to its high watermark: a hanging transaction hides what is behind it, but not that mark. */
  static void read(String bootstrap, List<String> topics, java.util.function.Consumer<ConsumerRecord<byte[], byte[]>> taker) {
    try (KafkaConsumer<byte[], byte[]> committed = consumer(bootstrap, "read_committed"); KafkaConsumer<byte[], byte[]> all = consumer(bootstrap, "read_uncommitted")) {
      List<TopicPartition> partitions = topics.stream().flatMap(t -> all.partitionsFor(t).stream()).map(i -> new TopicPartition(i.topic(), i.partition())).collect(Collectors.toList());
      Map<TopicPartition, Long> ends = all.endOffsets(partitions);
      committed.assign(partitions);
      committed.seekToBeginning(partitions);
      Set<TopicPartition> left = new HashSet<>(partitions);
      Map<TopicPartition, Long> at = new HashMap<>();
      for (int idle = 0; idle < PATIENCE; ) {
        for (ConsumerRecord<byte[], byte[]> r : committed.poll(POLL))
          if (r.offset() < ends.get(new TopicPartition(r.topic(), r.partition()))) taker.accept(r);
        boolean moved = false;
        for (TopicPartition p : left) {
          Long before = at.put(p, committed.position(p));
          moved |= before == null || before < at.get(p);
        }
        left.removeIf(p -> at.get(p) >= ends.get(p));
        if (left.isEmpty()) return;
        idle = moved ? 0 : idle + 1;
      }
      left.forEach(p -> System.out.printf("unreachable %s %d position=%d end=%d%n", p.topic(), p.partition(), at.get(p), ends.get(p)));
    }
  }
}
