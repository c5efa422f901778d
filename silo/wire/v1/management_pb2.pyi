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
    __slots__ = ("cluster", "view_version", "address", "activations_by_kind", "open_calls", "moves_out", "moves_in", "members", "awaits_earlier")
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
    AWAITS_EARLIER_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    view_version: int
    address: str
    activations_by_kind: _containers.ScalarMap[str, int]
    open_calls: int
    moves_out: int
    moves_in: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    awaits_earlier: bool
    def __init__(self, cluster: _Optional[str] = ..., view_version: _Optional[int] = ..., address: _Optional[str] = ..., activations_by_kind: _Optional[_Mapping[str, int]] = ..., open_calls: _Optional[int] = ..., moves_out: _Optional[int] = ..., moves_in: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., awaits_earlier: _Optional[bool] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("name", "address", "state", "app_version", "kinds", "meta", "gateway", "activations", "loop_lag_s", "cordoned", "in_flight", "in_flight_max", "activations_max")
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
    CORDONED_FIELD_NUMBER: _ClassVar[int]
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
    cordoned: bool
    in_flight: int
    in_flight_max: int
    activations_max: int
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., app_version: _Optional[str] = ..., kinds: _Optional[_Iterable[str]] = ..., meta: _Optional[_Mapping[str, str]] = ..., gateway: _Optional[bool] = ..., activations: _Optional[int] = ..., loop_lag_s: _Optional[float] = ..., cordoned: _Optional[bool] = ..., in_flight: _Optional[int] = ..., in_flight_max: _Optional[int] = ..., activations_max: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("silo",)
    SILO_FIELD_NUMBER: _ClassVar[int]
    silo: str
    def __init__(self, silo: _Optional[str] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CordonRequest(_message.Message):
    __slots__ = ("silo", "cordoned")
    SILO_FIELD_NUMBER: _ClassVar[int]
    CORDONED_FIELD_NUMBER: _ClassVar[int]
    silo: str
    cordoned: bool
    def __init__(self, silo: _Optional[str] = ..., cordoned: _Optional[bool] = ...) -> None: ...

class CordonReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GrainRequest(_message.Message):
    __slots__ = ("kind", "key", "look_up")
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    LOOK_UP_FIELD_NUMBER: _ClassVar[int]
    kind: str
    key: str
    look_up: bool
    def __init__(self, kind: _Optional[str] = ..., key: _Optional[str] = ..., look_up: _Optional[bool] = ...) -> None: ...

class GrainReply(_message.Message):
    __slots__ = ("silo", "entry", "entry_unknown", "activation", "search", "transitions")
    SILO_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    ENTRY_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    silo: str
    entry: Entry
    entry_unknown: str
    activation: ActivationRecord
    search: SearchRecord
    transitions: _containers.RepeatedCompositeFieldContainer[Transition]
    def __init__(self, silo: _Optional[str] = ..., entry: _Optional[_Union[Entry, _Mapping]] = ..., entry_unknown: _Optional[str] = ..., activation: _Optional[_Union[ActivationRecord, _Mapping]] = ..., search: _Optional[_Union[SearchRecord, _Mapping]] = ..., transitions: _Optional[_Iterable[_Union[Transition, _Mapping]]] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("silo", "activation", "epoch")
    SILO_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    silo: str
    activation: str
    epoch: int
    def __init__(self, silo: _Optional[str] = ..., activation: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class ActivationRecord(_message.Message):
    __slots__ = ("activation", "epoch", "state", "queued_calls", "running_calls", "idle_s", "reachable_s", "moving_to")
    ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    QUEUED_CALLS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_CALLS_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    REACHABLE_S_FIELD_NUMBER: _ClassVar[int]
    MOVING_TO_FIELD_NUMBER: _ClassVar[int]
    activation: str
    epoch: int
    state: str
    queued_calls: int
    running_calls: int
    idle_s: float
    reachable_s: float
    moving_to: str
    def __init__(self, activation: _Optional[str] = ..., epoch: _Optional[int] = ..., state: _Optional[str] = ..., queued_calls: _Optional[int] = ..., running_calls: _Optional[int] = ..., idle_s: _Optional[float] = ..., reachable_s: _Optional[float] = ..., moving_to: _Optional[str] = ...) -> None: ...

class SearchRecord(_message.Message):
    __slots__ = ("waiting_calls", "failed_tries", "retry_in_s")
    WAITING_CALLS_FIELD_NUMBER: _ClassVar[int]
    FAILED_TRIES_FIELD_NUMBER: _ClassVar[int]
    RETRY_IN_S_FIELD_NUMBER: _ClassVar[int]
    waiting_calls: int
    failed_tries: int
    retry_in_s: float
    def __init__(self, waiting_calls: _Optional[int] = ..., failed_tries: _Optional[int] = ..., retry_in_s: _Optional[float] = ...) -> None: ...

class Transition(_message.Message):
    __slots__ = ("state", "why", "times", "ago_s")
    STATE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    AGO_S_FIELD_NUMBER: _ClassVar[int]
    state: str
    why: str
    times: int
    ago_s: float
    def __init__(self, state: _Optional[str] = ..., why: _Optional[str] = ..., times: _Optional[int] = ..., ago_s: _Optional[float] = ...) -> None: ...

class DeactivateRequest(_message.Message):
    __slots__ = ("kind", "key", "within_s")
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    kind: str
    key: str
    within_s: float
    def __init__(self, kind: _Optional[str] = ..., key: _Optional[str] = ..., within_s: _Optional[float] = ...) -> None: ...

class DeactivateReply(_message.Message):
    __slots__ = ("silo", "status", "why")
    SILO_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    silo: str
    status: str
    why: str
    def __init__(self, silo: _Optional[str] = ..., status: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...
