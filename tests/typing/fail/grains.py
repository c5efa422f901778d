"""Each line with a comment `E:` is a mistake, and both type checkers have to find it there and nowhere else."""

from __future__ import annotations

from silo.grain import Grain, grain, one_way, read_only, soft_state, timeout
from silo.migration.participants import Participant
from silo.persistence.declaration import persistent
from silo.persistence.persistent import Persistent
from silo.reference import with_timeout


@grain(kind="room", re_entrant=True)  # E: mypy=call-overload pyright=reportCallIssue
class Misspelt(Grain): ...


@grain(on_busy="waits")  # E: mypy=call-overload pyright=reportArgumentType
class WrongChoice(Grain): ...


@grain(kind="room")
class Room(Grain):
    names: list[str] = soft_state(default="none")  # E: mypy=arg-type pyright=reportAssignmentType
    count: int = soft_state(default_factory=str.split)  # E: mypy=arg-type pyright=reportCallIssue
    stored: Persistent[int] = persistent(int)
    other: Persistent[Room] = persistent(Misspelt)  # E: mypy=arg-type pyright=reportAssignmentType
    plain: Grain = persistent(Misspelt)  # E: mypy=assignment pyright=reportAssignmentType
    wants: Persistent[bytes] = persistent(str.encode)  # E: mypy=arg-type pyright=reportArgumentType
    nothing: int = soft_state()  # E: mypy=call-overload pyright=reportCallIssue

    async def enter(self, player: str, *, loud: bool = False) -> int:
        self.key = "other"  # E: mypy=misc pyright=reportAttributeAccessIssue
        self.stored = 3  # E: mypy=assignment pyright=reportAttributeAccessIssue
        self.stored.value = "three"  # E: mypy=assignment pyright=reportAttributeAccessIssue
        self.stored.etag = "mine"  # E: mypy=misc pyright=reportAttributeAccessIssue
        self.stored.write()  # E: mypy=unused-coroutine pyright=reportUnusedCoroutine
        self.migrate("silo-2")  # E: mypy=call-arg pyright=reportCallIssue
        return 1

    @read_only  # E: mypy=type-var pyright=reportArgumentType
    def sync(self) -> int:
        return 1

    @one_way  # E: mypy=type-var pyright=reportArgumentType
    async def result(self) -> int:
        return 1

    @timeout("5 s")  # E: mypy=arg-type pyright=reportArgumentType
    async def late(self) -> None: ...


class NoParticipant:
    name = "half"


async def use(room: Room) -> None:
    await room.entre("ada")  # E: mypy=attr-defined pyright=reportAttributeAccessIssue
    await room.enter()  # E: mypy=call-arg pyright=reportCallIssue
    await room.enter(3)  # E: mypy=arg-type pyright=reportArgumentType
    await room.enter("ada", True)  # E: mypy=call-arg pyright=reportCallIssue
    text: str = await room.enter("ada")  # E: mypy=assignment pyright=reportAssignmentType
    number: int = room.enter("ada")  # E: mypy=assignment pyright=reportAssignmentType
    room.enter("ada")  # E: mypy=unused-coroutine pyright=reportUnusedCoroutine
    await with_timeout(room, "soon").enter("ada")  # E: mypy=arg-type pyright=reportArgumentType
    await Room().grain(Room, 3).enter(text * number)  # E: mypy=arg-type pyright=reportArgumentType


participant: Participant = NoParticipant()  # E: mypy=assignment pyright=reportAssignmentType
