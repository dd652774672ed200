//! What a client is told when a request fails: a status and OpenAI's error object, or Anthropic's on its route.

use hyper::StatusCode;
use serde_json::{Value, json};
use tensorlogic::TensorError;
use tensorlogic::serving::Refusal;

/// Why a request fails.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub status: StatusCode,
    pub message: String,
    /// The field that is wrong.
    pub param: Option<String>,
    pub code: Option<&'static str>,
    /// Seconds after which it may be worth trying again.
    pub retry_after: Option<u32>,
    /// The methods that the route has, where another was used.
    pub allow: Option<&'static str>,
}

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code: None, retry_after: None, allow: None }
    }
    /// A request that is wrong as a whole.
    pub fn bad(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }
    /// A field that is wrong.
    pub fn field(name: &str, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(name.into()), ..ApiError::bad(message) }
    }
    /// A failure of the server.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }
    /// The server takes no work at the moment.
    pub fn unavailable(message: impl Into<String>) -> ApiError {
        ApiError { retry_after: Some(5), ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message) }
    }
    pub fn code(self, code: &'static str) -> ApiError {
        ApiError { code: Some(code), ..self }
    }

    /// The status's name in OpenAI's error objects.
    pub fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            400..500 => "invalid_request_error",
            503 => "service_unavailable_error",
            _ => "server_error",
        }
    }

    /// OpenAI's error object.
    pub fn openai(&self) -> Value {
        json!({ "error": { "message": self.message, "type": self.kind(), "param": self.param, "code": self.code } })
    }

    /// Anthropic's error object.
    pub fn anthropic(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            400..500 => "invalid_request_error",
            _ => "api_error",
        };
        json!({ "type": "error", "error": { "type": kind, "message": self.message } })
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> ApiError {
        match &refusal {
            Refusal::TooLong { .. } => ApiError::bad(refusal.to_string()).code("context_length_exceeded"),
            Refusal::QueueFull => {
                ApiError { retry_after: Some(2), ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, refusal.to_string()) }.code("queue_full")
            }
            Refusal::WaitTooLong { expected, limit } => {
                let seconds = expected.saturating_sub(*limit).as_secs_f64().ceil().clamp(1.0, 3600.0) as u32;
                ApiError { retry_after: Some(seconds), ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, refusal.to_string()) }
                    .code("wait_too_long")
            }
            Refusal::Stopped => ApiError::unavailable(refusal.to_string()),
            _ => ApiError::bad(refusal.to_string()),
        }
    }
}

impl From<TensorError> for ApiError {
    fn from(e: TensorError) -> ApiError {
        match e {
            TensorError::State(_) | TensorError::DeviceLost(_) | TensorError::OutOfMemory { .. } => ApiError::unavailable(e.to_string()),
            // What a request asked for has no answer: a grammar without a way out, for instance.
            TensorError::Value(message) => ApiError::bad(message),
            _ => ApiError::internal(e.to_string()),
        }
    }
}
