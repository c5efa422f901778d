from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChallengeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChallengeReply(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("cluster", "view_version", "address", "activations_by_kind", "open_calls", "moves_out", "moves_in", "members")
    class ActivationsByKindEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    VIEW_VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ACTIVATIONS_BY_KIND_FIELD_NUMBER: _ClassVar[int]
    OPEN_CALLS_FIELD_NUMBER: _ClassVar[int]
    MOVES_OUT_FIELD_NUMBER: _ClassVar[int]
    MOVES_IN_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    view_version: int
    address: str
    activations_by_kind: _containers.ScalarMap[str, int]
    open_calls: int
    moves_out: int
    moves_in: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, cluster: _Optional[str] = ..., view_version: _Optional[int] = ..., address: _Optional[str] = ..., activations_by_kind: _Optional[_Mapping[str, int]] = ..., open_calls: _Optional[int] = ..., moves_out: _Optional[int] = ..., moves_in: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("name", "address", "state", "app_version", "kinds", "meta", "gateway", "activations", "loop_lag_s", "in_flight", "in_flight_max", "activations_max")
    class MetaEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    APP_VERSION_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    ACTIVATIONS_FIELD_NUMBER: _ClassVar[int]
    LOOP_LAG_S_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_MAX_FIELD_NUMBER: _ClassVar[int]
    ACTIVATIONS_MAX_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    state: str
    app_version: str
    kinds: _containers.RepeatedScalarFieldContainer[str]
    meta: _containers.ScalarMap[str, str]
    gateway: bool
    activations: int
    loop_lag_s: float
    in_flight: int
    in_flight_max: int
    activations_max: int
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., app_version: _Optional[str] = ..., kinds: _Optional[_Iterable[str]] = ..., meta: _Optional[_Mapping[str, str]] = ..., gateway: _Optional[bool] = ..., activations: _Optional[int] = ..., loop_lag_s: _Optional[float] = ..., in_flight: _Optional[int] = ..., in_flight_max: _Optional[int] = ..., activations_max: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("silo",)
    SILO_FIELD_NUMBER: _ClassVar[int]
    silo: str
    def __init__(self, silo: _Optional[str] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
