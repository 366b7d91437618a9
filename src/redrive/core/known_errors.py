"""Categories of known errors by HTTP status, error code, errno and class name, for `core/classify.py`."""

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

# AWS answers many of these with status 400, so its own code takes precedence.
_AWS_CODES = {
    Category.RATE_LIMIT: """
        BandwidthLimitExceeded EC2ThrottledException LimitExceededException PriorRequestNotComplete
        ProvisionedThroughputExceededException RequestLimitExceeded RequestThrottled RequestThrottledException SlowDown
        ThrottledException Throttling ThrottlingException TooManyRequestsException TransactionInProgressException
    """,
    Category.TIMEOUT: "RequestTimeout RequestTimeoutException",
    Category.SERVER_ERROR: """
        InternalError InternalFailure InternalServerError ServiceUnavailable ServiceUnavailableException
    """,
    Category.AUTHORIZATION: """
        AccessDenied AccessDeniedException ExpiredToken ExpiredTokenException InvalidClientTokenId
        UnrecognizedClientException
    """,
    Category.NOT_FOUND: "ResourceNotFoundException",
}

# ConnectTimeout of requests is listed because it is a ConnectionError as well, and NewConnectionError of urllib3
# because it is a TimeoutError by inheritance only.
_CLASS_NAMES = {
    Category.TIMEOUT: """
        builtins.TimeoutError subprocess.TimeoutExpired httpx.TimeoutException httpx2.TimeoutException
        requests.exceptions.ConnectTimeout requests.exceptions.Timeout urllib3.exceptions.TimeoutError
        aiohttp.client_exceptions.ServerTimeoutError botocore.exceptions.ConnectTimeoutError
        botocore.exceptions.ReadTimeoutError openai.APITimeoutError anthropic.APITimeoutError
    """,
    Category.NETWORK: """
        builtins.ConnectionError socket.gaierror socket.herror ssl.SSLError asyncio.exceptions.IncompleteReadError
        http.client.BadStatusLine http.client.IncompleteRead urllib.error.URLError httpx.TransportError
        httpx2.TransportError requests.exceptions.ConnectionError requests.exceptions.ChunkedEncodingError
        urllib3.exceptions.MaxRetryError urllib3.exceptions.NewConnectionError urllib3.exceptions.ProtocolError
        urllib3.exceptions.ProxyError urllib3.exceptions.SSLError aiohttp.client_exceptions.ClientConnectionError
        aiohttp.client_exceptions.ClientPayloadError botocore.exceptions.ConnectionError
        botocore.exceptions.HTTPClientError openai.APIConnectionError anthropic.APIConnectionError
    """,
    Category.RATE_LIMIT: "redrive.errors.RetryAfter",
    Category.DEPENDENCY_UNAVAILABLE: """
        redrive.errors.StoreUnavailable psycopg.OperationalError psycopg2.OperationalError
    """,
    Category.VALIDATION: """
        redrive.errors.InputError pydantic_core._pydantic_core.ValidationError pydantic.error_wrappers.ValidationError
        pydantic.v1.error_wrappers.ValidationError botocore.exceptions.ParamValidationError
    """,
    Category.AUTHORIZATION: "builtins.PermissionError",
    Category.NOT_FOUND: "builtins.FileNotFoundError redrive.errors.NotFound",
    Category.CLIENT_ERROR: "redrive.errors.Conflict",
    Category.MISSING_CONFIG: """
        redrive.errors.ConfigurationError botocore.exceptions.NoCredentialsError botocore.exceptions.NoRegionError
        botocore.exceptions.PartialCredentialsError
    """,
    Category.INTERNAL: """
        httpx.UnsupportedProtocol httpx.LocalProtocolError httpx2.UnsupportedProtocol httpx2.LocalProtocolError
        redrive.errors.MisusedStep builtins.TypeError builtins.AttributeError builtins.NameError builtins.LookupError
        builtins.ValueError builtins.AssertionError builtins.ArithmeticError builtins.NotImplementedError
    """,
}

CATEGORY_BY_AWS_CODE = {code: category for category, codes in _AWS_CODES.items() for code in codes.split()}
CATEGORY_BY_CLASS_NAME = {name: category for category, names in _CLASS_NAMES.items() for name in names.split()}

# By the whole state, by its first four letters, or by its class of two letters. The database rolled back a
# transaction that lost against another one (class 40), so a retry is safe.
CATEGORY_BY_SQLSTATE = {
    "08": Category.DEPENDENCY_UNAVAILABLE,
    "53": Category.DEPENDENCY_UNAVAILABLE,
    "57P0": Category.DEPENDENCY_UNAVAILABLE,
    "25006": Category.DEPENDENCY_UNAVAILABLE,  # read-only: a former primary after a failover
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

# Attributes that hold the error which an exception only wraps.
WRAPPED_ERROR_ATTRIBUTES = {
    "redrive.errors.NonRetryable": "__cause__",
    "sqlalchemy.exc.DBAPIError": "orig",
    "urllib.error.URLError": "reason",
    "urllib3.exceptions.MaxRetryError": "reason",
}
