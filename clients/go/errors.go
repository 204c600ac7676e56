package dragoman

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Domain is ErrorInfo.domain of every status of the contract.
const Domain = "dragoman"

// noServer finds what the system reports where no server listens.
var noServer = regexp.MustCompile(`connect: (no such file or directory|connection refused)`)

// Reason is ErrorInfo.reason: what programs decide by. The comments of the contract say when each is returned.
type Reason string

// The reasons of revision 1.
const (
	InvalidRequest     Reason = "INVALID_REQUEST"
	NotSupported       Reason = "NOT_SUPPORTED"
	AdapterRequired    Reason = "ADAPTER_REQUIRED"
	InvalidAnswer      Reason = "INVALID_ANSWER"
	InvalidPageToken   Reason = "INVALID_PAGE_TOKEN"
	AdapterNotFound    Reason = "ADAPTER_NOT_FOUND"
	RunNotFound        Reason = "RUN_NOT_FOUND"
	RequestNotFound    Reason = "REQUEST_NOT_FOUND"
	SessionNotFound    Reason = "SESSION_NOT_FOUND"
	AgentNotFound      Reason = "AGENT_NOT_FOUND"
	ArtifactNotFound   Reason = "ARTIFACT_NOT_FOUND"
	ServiceUnknown     Reason = "SERVICE_UNKNOWN"
	RunIDReused        Reason = "RUN_ID_REUSED"
	InputIDReused      Reason = "INPUT_ID_REUSED"
	AdapterTaken       Reason = "ADAPTER_TAKEN"
	AgentExists        Reason = "AGENT_EXISTS"
	VersionMismatch    Reason = "VERSION_MISMATCH"
	CapabilityMissing  Reason = "CAPABILITY_MISSING"
	SessionBusy        Reason = "SESSION_BUSY"
	AlreadyResolved    Reason = "ALREADY_RESOLVED"
	RequestExpired     Reason = "REQUEST_EXPIRED"
	RunFinished        Reason = "RUN_FINISHED"
	UpdateRefused      Reason = "UPDATE_REFUSED"
	ChangesUnknown     Reason = "CHANGES_UNKNOWN"
	ArtifactsGone      Reason = "ARTIFACTS_GONE"
	RevisionTooOld     Reason = "REVISION_TOO_OLD"
	AdapterUnreachable Reason = "ADAPTER_UNREACHABLE"
	AdapterRefused     Reason = "ADAPTER_REFUSED"
	AdapterNotLaunched Reason = "ADAPTER_NOT_LAUNCHED"
	AddressUntrusted   Reason = "ADDRESS_UNTRUSTED"
	AgentIncomplete    Reason = "AGENT_INCOMPLETE"
	TokenRequired      Reason = "TOKEN_REQUIRED"
	CallerRefused      Reason = "CALLER_REFUSED"
	NotPermitted       Reason = "NOT_PERMITTED"
	PolicyDenied       Reason = "POLICY_DENIED"
	SequenceAhead      Reason = "SEQUENCE_AHEAD"
	SlowConsumer       Reason = "SLOW_CONSUMER"
	TooManyRuns        Reason = "TOO_MANY_RUNS"
	TooManyInputs      Reason = "TOO_MANY_INPUTS"
	QuotaExceeded      Reason = "QUOTA_EXCEEDED"
	BudgetSpent        Reason = "BUDGET_SPENT"
	MessageTooLarge    Reason = "MESSAGE_TOO_LARGE"
	AdapterUnavailable Reason = "ADAPTER_UNAVAILABLE"
	Draining           Reason = "DRAINING"
	RunLogUnavailable  Reason = "RUN_LOG_UNAVAILABLE"
	BreakerOpen        Reason = "BREAKER_OPEN"
	NotImplemented     Reason = "NOT_IMPLEMENTED"
	Internal           Reason = "INTERNAL"
)

// Code returns the status that the contract pairs with a reason; codes.Unknown for one of a later revision.
func (r Reason) Code() codes.Code {
	switch r {
	case InvalidRequest, NotSupported, AdapterRequired, InvalidAnswer, InvalidPageToken:
		return codes.InvalidArgument
	case AdapterNotFound, RunNotFound, RequestNotFound, SessionNotFound, AgentNotFound, ArtifactNotFound,
		ServiceUnknown:
		return codes.NotFound
	case RunIDReused, InputIDReused, AdapterTaken, AgentExists:
		return codes.AlreadyExists
	case VersionMismatch:
		return codes.Aborted
	case CapabilityMissing, SessionBusy, AlreadyResolved, RequestExpired, RunFinished, UpdateRefused, ChangesUnknown,
		ArtifactsGone, RevisionTooOld, AdapterUnreachable, AdapterRefused, AdapterNotLaunched, AddressUntrusted,
		AgentIncomplete:
		return codes.FailedPrecondition
	case TokenRequired:
		return codes.Unauthenticated
	case CallerRefused, NotPermitted, PolicyDenied:
		return codes.PermissionDenied
	case SequenceAhead:
		return codes.OutOfRange
	case SlowConsumer, TooManyRuns, TooManyInputs, QuotaExceeded, BudgetSpent, MessageTooLarge:
		return codes.ResourceExhausted
	case AdapterUnavailable, Draining, RunLogUnavailable, BreakerOpen:
		return codes.Unavailable
	case NotImplemented:
		return codes.Unimplemented
	case Internal:
		return codes.Internal
	}
	return codes.Unknown
}

// Violation is a wrong field of a request.
type Violation struct {
	Field       string
	Description string
}

// Error is a status of the contract. The failure of an agent is none: it is data in the result of a run.
type Error struct {
	Code       codes.Code
	Reason     Reason // Empty if the status is not of the contract, as that of a broken connection.
	Message    string
	Metadata   map[string]string
	Violations []Violation
	RetryAfter time.Duration // 0 if the server does not say.
}

// Errorf returns an error for a reason, with the status that the contract pairs with it.
func Errorf(reason Reason, format string, args ...any) *Error {
	return &Error{Code: reason.Code(), Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// FieldError returns an error, INVALID_REQUEST or NOT_SUPPORTED, that names one field.
func FieldError(reason Reason, field, description string) *Error {
	err := Errorf(reason, "%s: %s", field, description)
	err.Violations = []Violation{{Field: field, Description: description}}
	return err
}

// WithMetadata adds a value to the metadata, and returns the error.
func (e *Error) WithMetadata(key, value string) *Error {
	if e.Metadata == nil {
		e.Metadata = map[string]string{}
	}
	e.Metadata[key] = value
	return e
}

// Error returns reason, or status, and message.
func (e *Error) Error() string {
	name := string(e.Reason)
	if name == "" {
		name = e.Code.String()
	}
	text := name + ": " + e.Message
	if len(e.Violations) > 1 {
		fields := make([]string, len(e.Violations))
		for i, violation := range e.Violations {
			fields[i] = violation.Field + ": " + violation.Description
		}
		text += " (" + strings.Join(fields, "; ") + ")"
	}
	return text
}

// GRPCStatus returns the status with its details, so that a server may return the error from a handler.
func (e *Error) GRPCStatus() *status.Status {
	plain := status.New(e.Code, e.Message)
	var details []protoadapt.MessageV1
	if e.Reason != "" {
		info := &errdetails.ErrorInfo{Reason: string(e.Reason), Domain: Domain, Metadata: e.Metadata}
		details = append(details, protoadapt.MessageV1Of(info))
	}
	if len(e.Violations) > 0 {
		bad := &errdetails.BadRequest{}
		for _, violation := range e.Violations {
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{
				Field: violation.Field, Description: violation.Description,
			})
		}
		details = append(details, protoadapt.MessageV1Of(bad))
	}
	if e.RetryAfter > 0 {
		retry := &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)}
		details = append(details, protoadapt.MessageV1Of(retry))
	}
	full, err := plain.WithDetails(details...)
	if err != nil { // only for the status OK
		return plain
	}
	return full
}

// FromError returns what a failed call says; nil for nil.
func FromError(err error) *Error {
	if err == nil {
		return nil
	}
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	st := status.Convert(err)
	converted := &Error{Code: st.Code(), Message: st.Message()}
	for _, detail := range st.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.GetDomain() == Domain {
				converted.Reason, converted.Metadata = Reason(detail.GetReason()), detail.GetMetadata()
			}
		case *errdetails.BadRequest:
			for _, violation := range detail.GetFieldViolations() {
				converted.Violations = append(converted.Violations, Violation{violation.GetField(), violation.GetDescription()})
			}
		case *errdetails.RetryInfo:
			converted.RetryAfter = detail.GetRetryDelay().AsDuration()
		}
	}
	if converted.Reason == "" && noServer.MatchString(converted.Message) {
		converted.Message += "; start a router with 'dragoman serve', or name another address"
	}
	return converted
}

// ReasonOf returns the reason of a failed call; empty if it has none.
func ReasonOf(err error) Reason {
	if converted := FromError(err); converted != nil {
		return converted.Reason
	}
	return ""
}

func (e *Error) is(reasons ...Reason) bool { return slices.Contains(reasons, e.Reason) }
