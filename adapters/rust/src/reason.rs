//! Statuses of the contract.

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt as _};

/// `ErrorInfo.domain` of every status of the contract.
pub const DOMAIN: &str = "dragoman";

/// `ErrorInfo.reason`: what programs decide by. The comments of the contract say when each is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // the contract describes them
pub enum Reason {
    InvalidRequest,
    NotSupported,
    AdapterNotFound,
    RunNotFound,
    RequestNotFound,
    ServiceUnknown,
    RunIdReused,
    CapabilityMissing,
    SessionBusy,
    InvalidAnswer,
    AlreadyResolved,
    RequestExpired,
    RunFinished,
    TokenRequired,
    CallerRefused,
    SequenceAhead,
    SlowConsumer,
    MessageTooLarge,
    Draining,
    NotImplemented,
    Internal,
}

impl Reason {
    /// Returns the name that is sent, and the status that the contract pairs with it.
    fn wire(self) -> (&'static str, Code) {
        match self {
            Self::InvalidRequest => ("INVALID_REQUEST", Code::InvalidArgument),
            Self::NotSupported => ("NOT_SUPPORTED", Code::InvalidArgument),
            Self::AdapterNotFound => ("ADAPTER_NOT_FOUND", Code::NotFound),
            Self::RunNotFound => ("RUN_NOT_FOUND", Code::NotFound),
            Self::RequestNotFound => ("REQUEST_NOT_FOUND", Code::NotFound),
            Self::ServiceUnknown => ("SERVICE_UNKNOWN", Code::NotFound),
            Self::RunIdReused => ("RUN_ID_REUSED", Code::AlreadyExists),
            Self::CapabilityMissing => ("CAPABILITY_MISSING", Code::FailedPrecondition),
            Self::SessionBusy => ("SESSION_BUSY", Code::FailedPrecondition),
            Self::InvalidAnswer => ("INVALID_ANSWER", Code::InvalidArgument),
            Self::AlreadyResolved => ("ALREADY_RESOLVED", Code::FailedPrecondition),
            Self::RequestExpired => ("REQUEST_EXPIRED", Code::FailedPrecondition),
            Self::RunFinished => ("RUN_FINISHED", Code::FailedPrecondition),
            Self::TokenRequired => ("TOKEN_REQUIRED", Code::Unauthenticated),
            Self::CallerRefused => ("CALLER_REFUSED", Code::PermissionDenied),
            Self::SequenceAhead => ("SEQUENCE_AHEAD", Code::OutOfRange),
            Self::SlowConsumer => ("SLOW_CONSUMER", Code::ResourceExhausted),
            Self::MessageTooLarge => ("MESSAGE_TOO_LARGE", Code::ResourceExhausted),
            Self::Draining => ("DRAINING", Code::Unavailable),
            Self::NotImplemented => ("NOT_IMPLEMENTED", Code::Unimplemented),
            Self::Internal => ("INTERNAL", Code::Internal),
        }
    }
}

/// A field of a request that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The path of the field, e.g. `config.command`.
    pub field: String,
    /// What is wrong, and what to do.
    pub description: String,
}

impl Violation {
    pub(crate) fn new(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self { field: field.into(), description: description.into() }
    }
}

/// A call that is rejected. The failure of an agent is none: it is data in the result of a run.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Why, for programs.
    pub reason: Reason,
    /// What went wrong and what to do, for people.
    pub message: String,
    /// More about it.
    pub metadata: HashMap<String, String>,
    /// The fields that are wrong.
    pub violations: Vec<Violation>,
    /// When to try again.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// Returns a refusal for a reason.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { reason, message, metadata: HashMap::new(), violations: Vec::new(), retry_after: None }
    }

    /// Returns a refusal, `InvalidRequest` or `NotSupported`, that names one field.
    pub fn field(reason: Reason, field: impl Into<String>, description: impl Into<String>) -> Self {
        let violation = Violation::new(field, description);
        let message = format!("{}: {}", violation.field, violation.description);
        Self { violations: vec![violation], ..Self::new(reason, message) }
    }

    /// Adds a value to the metadata.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.metadata.insert(key.to_owned(), value.into());
        self
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let (name, code) = refusal.reason.wire();
        let mut details = ErrorDetails::with_error_info(name, DOMAIN, refusal.metadata);
        if !refusal.violations.is_empty() {
            let all = refusal.violations.into_iter().map(|wrong| FieldViolation::new(wrong.field, wrong.description));
            details.set_bad_request(all.collect::<Vec<_>>());
        }
        if let Some(delay) = refusal.retry_after {
            details.set_retry_info(Some(delay));
        }
        Self::with_error_details(code, refusal.message, details)
    }
}
