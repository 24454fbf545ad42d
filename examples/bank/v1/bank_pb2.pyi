from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

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
    __slots__ = ("balance_cents", "entry")
    BALANCE_CENTS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    balance_cents: int
    entry: int
    def __init__(self, balance_cents: _Optional[int] = ..., entry: _Optional[int] = ...) -> None: ...

class StatementRequest(_message.Message):
    __slots__ = ("account", "after", "limit")
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    account: str
    after: int
    limit: int
    def __init__(self, account: _Optional[str] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class StatementReply(_message.Message):
    __slots__ = ("references",)
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    references: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, references: _Optional[_Iterable[str]] = ...) -> None: ...

class Books(_message.Message):
    __slots__ = ("accounts",)
    class Account(_message.Message):
        __slots__ = ("cents", "references")
        CENTS_FIELD_NUMBER: _ClassVar[int]
        REFERENCES_FIELD_NUMBER: _ClassVar[int]
        cents: int
        references: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, cents: _Optional[int] = ..., references: _Optional[_Iterable[str]] = ...) -> None: ...
    class AccountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Books.Account
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Books.Account, _Mapping]] = ...) -> None: ...
    ACCOUNTS_FIELD_NUMBER: _ClassVar[int]
    accounts: _containers.MessageMap[str, Books.Account]
    def __init__(self, accounts: _Optional[_Mapping[str, Books.Account]] = ...) -> None: ...
