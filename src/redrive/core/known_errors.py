"""What is known of errors: categories by status, code, number and name, for `core/classify.py` to look up."""

from __future__ import annotations

import errno

from redrive.policy import Category

CATEGORY_BY_STATUS = {
    400: Category.VALIDATION,
    401: Category.AUTHORIZATION,
    403: Category.AUTHORIZATION,
    404: Category.NOT_FOUND,
    408: Category.TIMEOUT,
    410: Category.NOT_FOUND,
    422: Category.VALIDATION,
    429: Category.RATE_LIMIT,
    504: Category.TIMEOUT,
}

# AWS answers many of these with status 400, so its own code goes first.
CATEGORY_BY_AWS_CODE = {
    **dict.fromkeys(
        (
            "BandwidthLimitExceeded",
            "EC2ThrottledException",
            "LimitExceededException",
            "PriorRequestNotComplete",
            "ProvisionedThroughputExceededException",
            "RequestLimitExceeded",
            "RequestThrottled",
            "RequestThrottledException",
            "SlowDown",
            "ThrottledException",
            "Throttling",
            "ThrottlingException",
            "TooManyRequestsException",
            "TransactionInProgressException",
        ),
        Category.RATE_LIMIT,
    ),
    **dict.fromkeys(("RequestTimeout", "RequestTimeoutException"), Category.TIMEOUT),
    **dict.fromkeys(("InternalError", "InternalServerError", "InternalFailure"), Category.SERVER_ERROR),
    **dict.fromkeys(("ServiceUnavailable", "ServiceUnavailableException"), Category.SERVER_ERROR),
    **dict.fromkeys(
        (
            "AccessDenied",
            "AccessDeniedException",
            "ExpiredToken",
            "ExpiredTokenException",
            "InvalidClientTokenId",
            "UnrecognizedClientException",
        ),
        Category.AUTHORIZATION,
    ),
    "ResourceNotFoundException": Category.NOT_FOUND,
}

# By whole state, by its first four or by its class of two letters. A transaction that lost against
# another one (class 40) was rolled back whole: the database asks for it again.
CATEGORY_BY_SQLSTATE = {
    "08": Category.DEPENDENCY_UNAVAILABLE,
    "53": Category.DEPENDENCY_UNAVAILABLE,
    "57P0": Category.DEPENDENCY_UNAVAILABLE,
    "25006": Category.DEPENDENCY_UNAVAILABLE,  # read-only: the former primary after a failover
    "40": Category.DEPENDENCY_UNAVAILABLE,
    "57014": Category.TIMEOUT,  # statement_timeout
    "55P03": Category.TIMEOUT,  # lock_timeout
    "22": Category.VALIDATION,
    "23": Category.VALIDATION,
    "28": Category.AUTHORIZATION,
    "42501": Category.AUTHORIZATION,
    "42": Category.INTERNAL,
}

CATEGORY_BY_SQLITE_CODE = {
    5: Category.DEPENDENCY_UNAVAILABLE,  # SQLITE_BUSY
    6: Category.DEPENDENCY_UNAVAILABLE,  # SQLITE_LOCKED
    19: Category.VALIDATION,  # SQLITE_CONSTRAINT
}

CONNECTION_ERRNOS = frozenset(
    {
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.EPIPE,
        errno.ESHUTDOWN,
    }
)

WRAPPED_ERROR_ATTRIBUTES = {
    "redrive.errors.NonRetryable": "__cause__",
    "sqlalchemy.exc.DBAPIError": "orig",
    "urllib.error.URLError": "reason",
    "urllib3.exceptions.MaxRetryError": "reason",
}

CATEGORY_BY_CLASS_NAME = {
    "builtins.TimeoutError": Category.TIMEOUT,
    "subprocess.TimeoutExpired": Category.TIMEOUT,
    "httpx.TimeoutException": Category.TIMEOUT,
    "httpx2.TimeoutException": Category.TIMEOUT,
    "requests.exceptions.ConnectTimeout": Category.TIMEOUT,  # named, for it is a ConnectionError as well
    "requests.exceptions.Timeout": Category.TIMEOUT,
    "urllib3.exceptions.NewConnectionError": Category.NETWORK,  # a TimeoutError only by inheritance
    "urllib3.exceptions.TimeoutError": Category.TIMEOUT,
    "aiohttp.client_exceptions.ServerTimeoutError": Category.TIMEOUT,
    "botocore.exceptions.ConnectTimeoutError": Category.TIMEOUT,
    "botocore.exceptions.ReadTimeoutError": Category.TIMEOUT,
    "openai.APITimeoutError": Category.TIMEOUT,
    "anthropic.APITimeoutError": Category.TIMEOUT,
    "builtins.ConnectionError": Category.NETWORK,
    "socket.gaierror": Category.NETWORK,
    "socket.herror": Category.NETWORK,
    "ssl.SSLError": Category.NETWORK,
    "asyncio.exceptions.IncompleteReadError": Category.NETWORK,
    "http.client.BadStatusLine": Category.NETWORK,
    "http.client.IncompleteRead": Category.NETWORK,
    "urllib.error.URLError": Category.NETWORK,
    "httpx.UnsupportedProtocol": Category.INTERNAL,
    "httpx.LocalProtocolError": Category.INTERNAL,
    "httpx.TransportError": Category.NETWORK,
    "httpx2.UnsupportedProtocol": Category.INTERNAL,
    "httpx2.LocalProtocolError": Category.INTERNAL,
    "httpx2.TransportError": Category.NETWORK,
    "requests.exceptions.ConnectionError": Category.NETWORK,
    "requests.exceptions.ChunkedEncodingError": Category.NETWORK,
    "urllib3.exceptions.MaxRetryError": Category.NETWORK,
    "urllib3.exceptions.ProtocolError": Category.NETWORK,
    "urllib3.exceptions.ProxyError": Category.NETWORK,
    "urllib3.exceptions.SSLError": Category.NETWORK,
    "aiohttp.client_exceptions.ClientConnectionError": Category.NETWORK,
    "aiohttp.client_exceptions.ClientPayloadError": Category.NETWORK,
    "botocore.exceptions.ConnectionError": Category.NETWORK,
    "botocore.exceptions.HTTPClientError": Category.NETWORK,
    "openai.APIConnectionError": Category.NETWORK,
    "anthropic.APIConnectionError": Category.NETWORK,
    "redrive.errors.RetryAfter": Category.RATE_LIMIT,
    "redrive.errors.StoreUnavailable": Category.DEPENDENCY_UNAVAILABLE,
    "psycopg.OperationalError": Category.DEPENDENCY_UNAVAILABLE,
    "psycopg2.OperationalError": Category.DEPENDENCY_UNAVAILABLE,
    "redrive.errors.InputError": Category.VALIDATION,
    "pydantic_core._pydantic_core.ValidationError": Category.VALIDATION,
    "pydantic.error_wrappers.ValidationError": Category.VALIDATION,
    "pydantic.v1.error_wrappers.ValidationError": Category.VALIDATION,
    "botocore.exceptions.ParamValidationError": Category.VALIDATION,
    "builtins.PermissionError": Category.AUTHORIZATION,
    "builtins.FileNotFoundError": Category.NOT_FOUND,
    "redrive.errors.NotFound": Category.NOT_FOUND,
    "redrive.errors.Conflict": Category.CLIENT_ERROR,
    "redrive.errors.ConfigurationError": Category.MISSING_CONFIG,
    "botocore.exceptions.NoCredentialsError": Category.MISSING_CONFIG,
    "botocore.exceptions.NoRegionError": Category.MISSING_CONFIG,
    "botocore.exceptions.PartialCredentialsError": Category.MISSING_CONFIG,
    "redrive.errors.MisusedStep": Category.INTERNAL,
    "builtins.TypeError": Category.INTERNAL,
    "builtins.AttributeError": Category.INTERNAL,
    "builtins.NameError": Category.INTERNAL,
    "builtins.LookupError": Category.INTERNAL,
    "builtins.ValueError": Category.INTERNAL,
    "builtins.AssertionError": Category.INTERNAL,
    "builtins.ArithmeticError": Category.INTERNAL,
    "builtins.NotImplementedError": Category.INTERNAL,
}
