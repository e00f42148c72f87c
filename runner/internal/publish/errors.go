package publish

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// Class is what to do about an error.
type Class uint8

// The classes.
const (
	// None: no error.
	None Class = iota
	// RetryCall: call the same method again. Nothing else may be done in between.
	RetryCall
	// Again: close the producer and start over through the whole order of a start; offsets are read back (I4).
	Again
	// Ask: somebody else may own the id, or the outcome of a commit is unknown. Ask the coordinator for the lease, then as Again, or stop.
	Ask
	// Stop: the task was asked to end.
	Stop
	// Fail: it can't work until somebody changes something.
	Fail
)

// String names the class.
func (c Class) String() string {
	return [...]string{"none", "retry call", "again", "ask", "stop", "fail"}[c]
}

// Verdict is an error put in a class.
type Verdict struct {
	Class Class
	// Cause is one word for statuses and metrics, one of the causes.
	Cause string
	// Text says to users what happened and what to do next.
	Text string
}

// The causes. This is where the words are; whoever counts or shows causes takes them from here.
const (
	// CauseBroker: Kafka isn't reachable, or too slow.
	CauseBroker = "broker"
	// CauseFenced: another producer has the id, or the transaction expired; Kafka says the same of both.
	CauseFenced = "fenced"
	// CauseExpired: a transaction was open for too long.
	CauseExpired = "expired"
	// CauseUnknown: whether a transaction is committed isn't known.
	CauseUnknown = "unknown"
	// CauseDelivery: the broker didn't take records without saying which. With delivery reports on, the next attempt names the record.
	CauseDelivery = "delivery"
	// CauseRecord: a record can't be published.
	CauseRecord = "record"
	// CauseTimestamp: the topic refuses a record's time.
	CauseTimestamp = "timestamp"
	// CauseTopic: a topic doesn't exist or isn't allowed.
	CauseTopic = "topic"
	// CauseRights: a right is missing.
	CauseRights = "rights"
	// CauseLogin: the broker doesn't take the client's credentials.
	CauseLogin = "login"
	// CauseConfig: the configuration is wrong.
	CauseConfig = "config"
	// CauseOffsets: the stored offsets can't be used. Of runner/internal/offsets.
	CauseOffsets = "offsets"
	// CauseClient: the client's own state is lost.
	CauseClient = "client"
	// CauseStopped: the task was asked to end.
	CauseStopped = "stopped"
	// CauseExit: the whole process must end: the client library has been lost with its memory too often.
	CauseExit = "exit"
)

// Classifier is an error that knows its own verdict. runner/internal/offsets has some.
type Classifier interface {
	error
	Verdict() Verdict
}

// Classify says what an error means. It takes errors of this package, of runner/internal/offsets, and any that wraps a kafka.Error.
func Classify(err error) Verdict {
	if err == nil {
		return Verdict{}
	}
	if own, ok := errors.AsType[Classifier](err); ok {
		return own.Verdict()
	}
	if errors.Is(err, ErrMustExit) {
		return Verdict{Fail, CauseExit, err.Error()}
	}
	e, _ := errors.AsType[*Error](err)
	if e != nil && e.Unknown {
		return say(Ask, CauseUnknown, err, "whether this transaction is committed isn't known; the stored offsets will tell, so the task goes on from there")
	}
	k, ok := errors.AsType[kafka.Error](err)
	if !ok {
		return classifyOther(err, e)
	}
	return classifyKafka(err, e, k)
}

// classifyOther is for errors that don't come from Kafka.
func classifyOther(err error, e *Error) Verdict {
	switch {
	case errors.Is(err, context.Canceled):
		return say(Stop, CauseStopped, err, "")
	case errors.Is(err, context.DeadlineExceeded):
		return say(Again, CauseBroker, err, "Kafka was too slow; the task goes on from the stored offsets")
	case e != nil && e.Op == opProduce:
		return say(Fail, CauseRecord, err, "the plugin sent something that can't be published")
	case e != nil && e.Op == opClose:
		return say(Again, CauseClient, err, "the task goes on with a new producer")
	default:
		return say(Again, CauseClient, err, "the task goes on from the stored offsets")
	}
}

func classifyKafka(err error, e *Error, k kafka.Error) Verdict {
	code := k.Code()
	// "Some deliveries failed" says less than the first that did.
	if code == kafka.ErrInconsistent && e != nil && e.Failure != nil {
		if f, ok := errors.AsType[kafka.Error](e.Failure.Err); ok {
			code = f.Code()
		}
	}
	r, ok := rules[code]
	if !ok {
		r = unexpected
	}
	if r.cause == CauseFenced && e != nil && e.Expired {
		return say(Ask, CauseExpired, err, fmt.Sprintf("the transaction was open for %v, longer than transaction.timeout.ms allows; the task goes on from the stored offsets", e.Open.Round(time.Millisecond)))
	}
	class := r.class
	switch {
	case class == Fail || class == Ask:
	case !k.IsFatal() && !k.TxnRequiresAbort() && k.IsRetriable() && e != nil:
		class = RetryCall
	case class == RetryCall && (k.IsFatal() || k.TxnRequiresAbort()):
		class = Again
	}
	if e != nil && isAuthentication(e.Report) {
		return say(Again, CauseLogin, err, "check security.protocol and sasl.* of the runner against the broker")
	}
	advice := r.advice
	if code == kafka.ErrTransactionalIDAuthorizationFailed && e != nil && e.ID != "" {
		advice += fmt.Sprintf(" (prefix %q, for all tasks of the cluster)", clusterPrefix(e.ID))
	}
	return say(class, r.cause, err, advice)
}

// clusterPrefix is what all transactional ids of a cluster begin with: the first two of the names in an id, and the dots after them.
func clusterPrefix(id string) string {
	if parts := strings.SplitAfterN(id, ".", 3); len(parts) == 3 {
		return parts[0] + parts[1]
	}
	return id
}

func say(class Class, cause string, err error, advice string) Verdict {
	text := err.Error()
	if advice != "" {
		text += ": " + advice
	}
	return Verdict{class, cause, text}
}

type rule struct {
	class  Class
	cause  string
	advice string
}

// unexpected is for codes that a newer librdkafka may bring.
var unexpected = rule{Again, CauseClient, "the task goes on from the stored offsets"}

// rules has every code that librdkafka 2.11.1 knows. A class of RetryCall holds only for an error that neither is fatal nor asks for an abort.
var rules = makeRules(
	group{rule{RetryCall, CauseBroker, "Kafka is not reachable or busy, and is asked again"}, []kafka.ErrorCode{
		kafka.ErrTransport, kafka.ErrResolve, kafka.ErrAllBrokersDown, kafka.ErrTimedOut, kafka.ErrTimedOutQueue, kafka.ErrFail, kafka.ErrSsl,
		kafka.ErrWaitCoord, kafka.ErrWaitCache, kafka.ErrRetry, kafka.ErrQueueFull, kafka.ErrInProgress, kafka.ErrPrevInProgress, kafka.ErrNodeUpdate, kafka.ErrUnknownBroker,
		kafka.ErrLeaderNotAvailable, kafka.ErrNotLeaderForPartition, kafka.ErrRequestTimedOut, kafka.ErrBrokerNotAvailable, kafka.ErrReplicaNotAvailable,
		kafka.ErrNetworkException, kafka.ErrCoordinatorLoadInProgress, kafka.ErrCoordinatorNotAvailable, kafka.ErrNotCoordinator, kafka.ErrNotController,
		kafka.ErrStaleCtrlEpoch, kafka.ErrStaleBrokerEpoch, kafka.ErrFencedLeaderEpoch, kafka.ErrUnknownLeaderEpoch, kafka.ErrOffsetNotAvailable,
		kafka.ErrPreferredLeaderNotAvailable, kafka.ErrEligibleLeadersNotAvailable, kafka.ErrConcurrentTransactions, kafka.ErrUnstableOffsetCommit,
		kafka.ErrThrottlingQuotaExceeded, kafka.ErrRebootstrapRequired, kafka.ErrReassignmentInProgress, kafka.ErrTopicAlreadyExists, kafka.ErrDestroyBroker,
		kafka.ErrIntr, kafka.ErrPartial, kafka.ErrUnknown, kafka.ErrListenerNotFound, kafka.ErrOperationNotAttempted,
	}},
	group{rule{Again, CauseBroker, "Kafka could not take the records in time; the task goes on from the stored offsets"}, []kafka.ErrorCode{
		kafka.ErrMsgTimedOut, kafka.ErrIsrInsuff, kafka.ErrNotEnoughReplicas, kafka.ErrNotEnoughReplicasAfterAppend, kafka.ErrKafkaStorageError, kafka.ErrLogDirNotFound,
		kafka.ErrPurgeQueue, kafka.ErrPurgeInflight,
	}},
	group{rule{Again, CauseDelivery, "some records were not delivered; the next attempt names the first that is refused"}, []kafka.ErrorCode{
		kafka.ErrInconsistent, kafka.ErrInvalidDifferentRecord,
	}},
	group{rule{Ask, CauseFenced, "another producer has this transactional id, or the transaction expired; the task asks whether it is still its own"}, []kafka.ErrorCode{
		kafka.ErrFenced, kafka.ErrFatal, kafka.ErrInvalidProducerEpoch, kafka.ErrProducerFenced, kafka.ErrInvalidProducerIDMapping, kafka.ErrUnknownProducerID,
		kafka.ErrTransactionCoordinatorFenced,
	}},
	group{rule{Again, CauseClient, "the producer's state is lost; the task goes on with a new one from the stored offsets"}, []kafka.ErrorCode{
		kafka.ErrInvalidTxnState, kafka.ErrOutOfOrderSequenceNumber, kafka.ErrDuplicateSequenceNumber, kafka.ErrGaplessGuarantee, kafka.ErrState, kafka.ErrConflict,
		kafka.ErrDestroy, kafka.ErrOutdated, kafka.ErrBadMsg, kafka.ErrBadCompression, kafka.ErrUnderflow, kafka.ErrInvalidType, kafka.ErrNoop, kafka.ErrApplication,
		kafka.ErrReadOnly, kafka.ErrNoent, kafka.ErrCritSysResource,
	}},
	group{rule{Again, CauseTopic, "the topic or partition doesn't exist, or its broker is away: create it, or set the topic's name right"}, []kafka.ErrorCode{
		kafka.ErrUnknownTopicOrPart, kafka.ErrUnknownTopic, kafka.ErrUnknownPartition, kafka.ErrUnknownTopicID, kafka.ErrTopicDeletionDisabled,
	}},
	group{rule{Fail, CauseTopic, "Kafka doesn't allow this topic name: 1 to 249 of letters, digits, '.', '_' and '-'"}, []kafka.ErrorCode{
		kafka.ErrTopicException,
	}},
	group{rule{Fail, CauseRecord, "the record is larger than allowed: raise the topic's max.message.bytes (the broker's message.max.bytes), or lower producer.override.batch.size below it if a single record is not that large"}, []kafka.ErrorCode{
		kafka.ErrMsgSizeTooLarge, kafka.ErrRecordListTooLarge, kafka.ErrInvalidMsgSize, kafka.ErrOffsetMetadataTooLarge, kafka.ErrInvalidCommitOffsetSize,
	}},
	group{rule{Fail, CauseTimestamp, "the topic's message.timestamp.before.max.ms or message.timestamp.after.max.ms refuses the record's timestamp, or this host's time where the record has none of its own"}, []kafka.ErrorCode{
		kafka.ErrInvalidTimestamp,
	}},
	group{rule{Fail, CauseRecord, "the topic refuses the record: a compacted topic needs a key on each"}, []kafka.ErrorCode{
		kafka.ErrInvalidRecord, kafka.ErrInvalidMsg,
	}},
	group{rule{Fail, CauseRecord, "the record can't be encoded or decoded"}, []kafka.ErrorCode{
		kafka.ErrKeySerialization, kafka.ErrValueSerialization, kafka.ErrKeyDeserialization, kafka.ErrValueDeserialization,
	}},
	group{rule{Fail, CauseRights, "grant the runner's principal Write and Describe on the topic (Read and Create too on the offsets topic)"}, []kafka.ErrorCode{
		kafka.ErrTopicAuthorizationFailed,
	}},
	group{rule{Fail, CauseRights, "grant the runner's principal Write and Describe on the transactional id"}, []kafka.ErrorCode{
		kafka.ErrTransactionalIDAuthorizationFailed,
	}},
	group{rule{Fail, CauseRights, "grant the runner's principal the right that is named"}, []kafka.ErrorCode{
		kafka.ErrClusterAuthorizationFailed, kafka.ErrGroupAuthorizationFailed, kafka.ErrDelegationTokenAuthorizationFailed, kafka.ErrSecurityDisabled,
	}},
	group{rule{Again, CauseLogin, "check security.protocol and sasl.* of the runner against the broker"}, []kafka.ErrorCode{
		kafka.ErrAuthentication, kafka.ErrSaslAuthenticationFailed, kafka.ErrUnsupportedSaslMechanism, kafka.ErrIllegalSaslState,
		kafka.ErrDelegationTokenAuthDisabled, kafka.ErrDelegationTokenNotFound, kafka.ErrDelegationTokenOwnerMismatch, kafka.ErrDelegationTokenRequestNotAllowed,
		kafka.ErrDelegationTokenExpired, kafka.ErrInvalidPrincipalType, kafka.ErrUnacceptableCredential, kafka.ErrPrincipalDeserializationFailure,
	}},
	group{rule{Fail, CauseConfig, "transaction.timeout.ms is above the broker's transaction.max.timeout.ms: lower the one or raise the other"}, []kafka.ErrorCode{
		kafka.ErrInvalidTransactionTimeout,
	}},
	group{rule{Fail, CauseConfig, "the topic or the broker doesn't support this compression.type: choose another"}, []kafka.ErrorCode{
		kafka.ErrUnsupportedCompressionType,
	}},
	group{rule{Fail, CauseConfig, "the broker or the client doesn't support what the configuration asks for; Fencepost needs Kafka 2.5 or newer"}, []kafka.ErrorCode{
		kafka.ErrUnsupportedVersion, kafka.ErrUnsupportedFeature, kafka.ErrUnsupportedForMessageFormat, kafka.ErrNotImplemented, kafka.ErrNotConfigured, kafka.ErrUnknownProtocol,
		kafka.ErrInvalidRequest, kafka.ErrInvalidRequiredAcks, kafka.ErrInvalidArg, kafka.ErrFs, kafka.ErrInvalidConfig, kafka.ErrInvalidPartitions,
		kafka.ErrInvalidReplicationFactor, kafka.ErrInvalidReplicaAssignment, kafka.ErrPolicyViolation,
	}},
	// What only consumers, groups, admin tools and brokers among themselves see. Reading offsets may meet the first four.
	group{rule{Again, CauseClient, "the task goes on from the stored offsets"}, []kafka.ErrorCode{
		kafka.ErrPartitionEOF, kafka.ErrOffsetOutOfRange, kafka.ErrAutoOffsetReset, kafka.ErrLogTruncation,
		kafka.ErrNoOffset, kafka.ErrUnknownGroup, kafka.ErrExistingSubscription, kafka.ErrAssignPartitions, kafka.ErrRevokePartitions, kafka.ErrMaxPollExceeded, kafka.ErrAssignmentLost,
		kafka.ErrIllegalGeneration, kafka.ErrInconsistentGroupProtocol, kafka.ErrInvalidGroupID, kafka.ErrUnknownMemberID, kafka.ErrInvalidSessionTimeout, kafka.ErrRebalanceInProgress,
		kafka.ErrNonEmptyGroup, kafka.ErrGroupIDNotFound, kafka.ErrFetchSessionIDNotFound, kafka.ErrInvalidFetchSessionEpoch, kafka.ErrMemberIDRequired, kafka.ErrGroupMaxSizeReached,
		kafka.ErrFencedInstanceID, kafka.ErrElectionNotNeeded, kafka.ErrNoReassignmentInProgress, kafka.ErrGroupSubscribedToTopic, kafka.ErrResourceNotFound, kafka.ErrDuplicateResource,
		kafka.ErrInconsistentVoterSet, kafka.ErrInvalidUpdateVersion, kafka.ErrFeatureUpdateFailed, kafka.ErrFencedMemberEpoch, kafka.ErrUnreleasedInstanceID,
		kafka.ErrUnsupportedAssignor, kafka.ErrStaleMemberEpoch, kafka.ErrUnknownSubscriptionID, kafka.ErrTelemetryTooLarge,
	}},
)

type group struct {
	rule
	codes []kafka.ErrorCode
}

func makeRules(groups ...group) map[kafka.ErrorCode]rule {
	table := map[kafka.ErrorCode]rule{}
	for _, g := range groups {
		for _, code := range g.codes {
			if _, twice := table[code]; twice {
				panic(fmt.Sprintf("two rules for error code %d", code))
			}
			table[code] = g.rule
		}
	}
	return table
}
