from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class DepositRequest(_message.Message):
    __slots__ = ("reference", "account", "cents")
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    CENTS_FIELD_NUMBER: _ClassVar[int]
    reference: str
    account: str
    cents: int
    def __init__(self, reference: _Optional[str] = ..., account: _Optional[str] = ..., cents: _Optional[int] = ...) -> None: ...

class TransferRequest(_message.Message):
    __slots__ = ("reference", "from_account", "to_account", "cents")
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    FROM_ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    TO_ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    CENTS_FIELD_NUMBER: _ClassVar[int]
    reference: str
    from_account: str
    to_account: str
    cents: int
    def __init__(self, reference: _Optional[str] = ..., from_account: _Optional[str] = ..., to_account: _Optional[str] = ..., cents: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("entry", "balance_cents")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    BALANCE_CENTS_FIELD_NUMBER: _ClassVar[int]
    entry: int
    balance_cents: int
    def __init__(self, entry: _Optional[int] = ..., balance_cents: _Optional[int] = ...) -> None: ...

class BalanceRequest(_message.Message):
    __slots__ = ("account",)
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    account: str
    def __init__(self, account: _Optional[str] = ...) -> None: ...

class BalanceReply(_message.Message):
    __slots__ = ("balance_cents",)
    BALANCE_CENTS_FIELD_NUMBER: _ClassVar[int]
    balance_cents: int
    def __init__(self, balance_cents: _Optional[int] = ...) -> None: ...
