"""The membership table on Redis: one hash, one script, one channel for hints.

The hash `silo:{CLUSTER}:members` holds `version`, `run` (the run of Redis that wrote it), `table` (the random id that
it got when it was made) and a field per silo, named by its address, with `FORMAT status seq seen joined dead` as text
and then what the silo says of itself as MessagePack; where it is cordoned, one more element of that array says so,
which releases that know of no cordon pass over and keep. What stands for the silos of an earlier table has the field of
one that joins and has never renewed, so that those releases wait for it, too.
Every request is one run of one script, so each answer shows the whole table as it was at that very step. The channel
`silo:{CLUSTER}:views` gets each new version: a reason to look, while reading the table is the truth.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec
import redis
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError

from silo.directory.addresses import SiloAddress
from silo.directory.errors import InvalidSettings, MembershipUnavailable, SiloError
from silo.directory.membership import (
    EARLIER,
    Advance,
    Bury,
    Cordon,
    Join,
    Read,
    Rejoin,
    Renew,
    SiloInfo,
    SiloRow,
    SiloStatus,
    Table,
    TableAnswer,
    TableRequest,
    TableStatus,
    Verdict,
    earlier_row,
)
from silo.directory.memory_membership import DEAD_ROWS_KEPT, RUN_LEAP
from silo.directory.redis_connection import REDIS_ERRORS

ROW_FORMAT: Final = "1"
"""The first word of a row. A row of another format is left alone, and the request that met it fails."""

SCRIPT: Final = (
    f"local FORMAT, KEPT, LEAP, DEAD = '{ROW_FORMAT}', {DEAD_ROWS_KEPT}, {RUN_LEAP}, {int(SiloStatus.DEAD)}\n"
    f"local EARLIER = '{EARLIER}'"
    + """
local key, channel = KEYS[1], ARGV[1]
local op, silo, new_id = ARGV[2], ARGV[3], ARGV[4]

local function text(number) return string.format('%.0f', number) end

local function parse(field, row)
  local status, seq, seen, joined, died, about =
    string.match(row, '^' .. FORMAT .. ' (%d) (%d+) (%d+) (%d+) (%d+) (.*)$')
  if not status then return nil end
  return {field = field, status = tonumber(status), seq = tonumber(seq), seen = tonumber(seen),
          joined = tonumber(joined), died = tonumber(died), about = about}
end

local function load(field)
  local row = redis.call('HGET', key, field)
  return row and (parse(field, row) or error('unknown format of row ' .. field))
end

local function store(row)
  redis.call('HSET', key, row.field, table.concat({FORMAT, text(row.status), text(row.seq), text(row.seen),
    text(row.joined), text(row.died), row.about}, ' '))
end

local about_server = redis.pcall('INFO', 'server')
local run = type(about_server) == 'string' and string.match(about_server, 'run_id:(%w+)')
if not run then return redis.error_reply('SILORUN INFO server, as seen by a script, does not show run_id') end
local before = tonumber(redis.call('HGET', key, 'version') or '0')
local version = before
local run_seen = redis.call('HGET', key, 'run')
local id = redis.call('HGET', key, 'table') or ''

-- another table begins with the rows of this one, as if somebody had brought them
local function begin_again()
  id = new_id
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    if fields[i] ~= 'version' and fields[i] ~= 'run' and fields[i] ~= 'table' then
      local row = parse(fields[i], fields[i + 1])
      if row and row.status ~= DEAD then
        row.seq, row.seen, row.joined = 0, 0, version
        store(row)
      end
    end
  end
end

if run_seen and run_seen ~= run then
  version = version + LEAP
  begin_again()
end

local function bury(row)
  version = version + 1
  row.status, row.died = DEAD, version
  store(row)
end

local status = 'ok'
if op == 'join' then
  local row = load(silo)
  if row then
    status = row.status == DEAD and 'dead' or 'stale'
  else
    local founds_unasked = version == 0 and ARGV[6] ~= ''
    version = version + 1
    store({field = silo, status = 0, seq = 1, seen = version, joined = version, died = 0, about = ARGV[5]})
    if founds_unasked then
      store({field = EARLIER, status = 0, seq = 0, seen = 0, joined = version, died = 0, about = ARGV[6]})
    end
  end
elseif op == 'renew' then
  local row, table_id = load(silo), ARGV[7]
  if row and row.status == DEAD then
    status = 'dead'
  elseif (table_id ~= '' and table_id ~= id) or tonumber(ARGV[5]) > version
      or (row and row.seq < tonumber(ARGV[6])) then
    status = 'lost'
  elseif not row then
    status = 'dead'
  elseif row.seq ~= tonumber(ARGV[6]) then
    status = 'stale'
  else
    row.seq, row.seen = row.seq + 1, math.max(row.seen, tonumber(ARGV[5]))
    store(row)
  end
elseif op == 'rejoin' then
  local row, known_id, earlier = load(silo), ARGV[8], load(EARLIER)
  local awaited = ARGV[9] ~= '' and parse(EARLIER, ARGV[9])
  local given_up = earlier and earlier.status == DEAD and not (awaited and awaited.about == earlier.about)
  if (row and row.status == DEAD) or (not row and given_up) then
    status = 'dead'
  elseif row and row.seq > 0 and id ~= known_id then
    status = 'stale'
  else
    version = math.max(version, tonumber(ARGV[7])) + 1
    if id == known_id then begin_again() end  -- it has come back as it was earlier
    if not earlier or earlier.status ~= DEAD then
      redis.call('HDEL', key, EARLIER)  -- it is known now who was there, but for those that were awaited there
      if awaited then
        awaited.seq, awaited.seen, awaited.joined = 0, 0, version
        awaited.died = awaited.status == DEAD and version or 0
        store(awaited)
      end
    end
    for i = 10, #ARGV, 2 do
      local brought, known = parse(ARGV[i], ARGV[i + 1]), load(ARGV[i])
      if not brought then error('unknown format of row ' .. ARGV[i]) end
      if not known then
        brought.seq, brought.seen, brought.joined = 0, 0, version
        brought.died = brought.status == DEAD and version or 0
        store(brought)
      elseif brought.status == DEAD and known.status ~= DEAD then
        known.status, known.died = DEAD, version
        store(known)
      end
    end
    store({field = silo, status = tonumber(ARGV[5]), seq = 1, seen = 0, joined = version, died = 0, about = ARGV[6]})
  end
elseif op == 'advance' then
  local row, to = load(silo), tonumber(ARGV[5])
  if not row or row.status == DEAD then
    status = 'dead'
  elseif row.status < to and to < DEAD then
    version = version + 1
    row.status = to
    store(row)
  end
elseif op == 'cordon' then
  local row, wanted, other = load(silo), ARGV[5], ARGV[6]
  if not row or row.status == DEAD then
    status = 'dead'
  elseif row.about == wanted then
    status = 'ok'
  elseif row.about ~= other or version ~= tonumber(ARGV[7]) then
    status = 'stale'
  else
    version = version + 1
    row.about = wanted
    store(row)
  end
elseif op == 'verdict' then
  local row = load(silo)
  local moved = run .. '/' .. id ~= ARGV[5] or version ~= tonumber(ARGV[6])
  if row and row.status ~= DEAD and not moved and row.seq == tonumber(ARGV[7]) then
    bury(row)
  else
    status = 'stale'
  end
elseif op == 'bury' then
  local row = load(silo)
  if row and row.status ~= DEAD then bury(row) end
end

local fields = redis.call('HGETALL', key)
if version ~= before then
  if id == '' then id = new_id end
  redis.call('HSET', key, 'version', text(version), 'run', run, 'table', id)
  redis.call('PUBLISH', channel, text(version))
  local seen, dead, unknown = version, {}, false
  for i = 1, #fields, 2 do
    if fields[i] ~= 'version' and fields[i] ~= 'run' and fields[i] ~= 'table' and fields[i] ~= EARLIER then
      local row = parse(fields[i], fields[i + 1])
      if not row then unknown = true
      elseif row.status == DEAD then dead[#dead + 1] = row
      else seen = math.min(seen, row.seen) end
    end
  end
  if #dead > KEPT and not unknown then
    table.sort(dead, function(a, b) return a.died > b.died end)
    for i = KEPT + 1, #dead do
      if dead[i].died <= seen then redis.call('HDEL', key, dead[i].field) end
    end
    fields = redis.call('HGETALL', key)
  end
end
return {status, run .. '/' .. id, text(version), fields}
"""
)


_EARLIER: Final = str(EARLIER).encode()


def members_key(cluster: str) -> str:
    return f"silo:{{{cluster}}}:members"


def views_channel(cluster: str) -> str:
    return f"silo:{{{cluster}}}:views"


def read_table(fields: Mapping[bytes, bytes], *, run: str | None = None, version: int | None = None) -> Table:
    """The table that the fields of the hash hold; raises MembershipUnavailable for a row of a format unknown here."""
    rows: list[SiloRow] = []
    for field, value in fields.items():
        if field not in (b"version", b"run", b"table", _EARLIER):
            rows.append(_read_row(field.decode(), value))
    rows.sort(key=lambda row: (row.joined, row.silo))
    return Table(
        run=b"/".join(fields.get(name, b"") for name in (b"run", b"table")).decode() if run is None else run,
        version=int(fields.get(b"version", b"0")) if version is None else version,
        rows=tuple(rows),
        earlier=_read_row(str(EARLIER), fields[_EARLIER]) if _EARLIER in fields else None,
    )


class _Cordonable(SiloInfo, frozen=True, array_like=True):
    """What a silo says of itself, and what an operator has said of it. A field that `SiloInfo` gets one day comes after
    this one in the array."""

    cordoned: bool = False


def _read_row(field: str, value: bytes) -> SiloRow:
    words = value.split(b" ", 6)
    if len(words) != 7 or words[0] != ROW_FORMAT.encode():
        raise MembershipUnavailable(f"the membership row of {field} has a format that this release does not know")
    status, seq, seen, joined, died = (int(word) for word in words[1:6])
    silo = SiloAddress.parse(field)
    info = msgspec.msgpack.decode(words[6], type=SiloInfo)
    cordoned = msgspec.msgpack.decode(words[6], type=_Cordonable).cordoned
    return SiloRow(silo, info, SiloStatus(status), seq, seen, joined, died or None, cordoned)


def _write_row(row: SiloRow) -> bytes:
    words = (ROW_FORMAT, int(row.status), row.seq, row.seen, row.joined, row.dead or 0)
    return " ".join(map(str, words)).encode() + b" " + _write_about(row.info, row.cordoned)


def _write_about(info: SiloInfo, cordoned: bool) -> bytes:
    if not cordoned:
        return msgspec.msgpack.encode(info)
    return msgspec.msgpack.encode((*msgspec.structs.astuple(info), cordoned))


def translated(error: Exception) -> SiloError:
    """Our word for an error of Redis: InvalidSettings where asking again will not help."""
    text = str(error)
    refused = isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError)
    if refused or text.startswith(("NOPERM", "SILORUN")):
        needs = "EVALSHA, SCRIPT LOAD, INFO, PUBLISH, SUBSCRIBE and the commands on hashes"
        return InvalidSettings(f"Redis refuses the membership table: {text} (it needs {needs})")
    return MembershipUnavailable(f"the membership table could not be asked: {text or type(error).__name__}")


class RedisMembershipTable:
    """The membership table of one cluster, asked by one thread through a connection of its own.

    Args:
        open_client: opens a blocking client whose every step ends within the seconds given, and that retries nothing.
        cluster: the name of the cluster.
    """

    def __init__(self, open_client: Callable[[float], redis.Redis], cluster: str) -> None:
        self._open_client = open_client
        self._key = members_key(cluster)
        self._channel = views_channel(cluster)
        self._client: redis.Redis | None = None
        self._timeout_s = 0.0
        self._script: Callable[..., Any] | None = None

    def ask(self, request: TableRequest, timeout_s: float) -> TableAnswer:
        try:
            script = self._opened(timeout_s)
            status, run, version, fields = cast(
                "tuple[bytes, bytes, bytes, list[bytes]]",
                script(keys=[self._key], args=[self._channel, *_arguments(request)]),
            )
        except REDIS_ERRORS as error:
            self._let_go()  # the next request looks up anew which server to ask
            raise translated(error) from error
        table = read_table(dict(zip(fields[::2], fields[1::2], strict=True)), run=run.decode(), version=int(version))
        return TableAnswer(TableStatus(status.decode()), table)

    def close(self) -> None:
        self._let_go()

    def _opened(self, timeout_s: float) -> Callable[..., Any]:
        if self._script is None or self._timeout_s != timeout_s:
            self._let_go()
            self._client, self._timeout_s = self._open_client(timeout_s), timeout_s
            self._script = cast("Callable[..., Any]", self._client.register_script(SCRIPT))
        return self._script

    def _let_go(self) -> None:
        client, self._client, self._script = self._client, None, None
        if client is not None:
            client.close()


def _arguments(request: TableRequest) -> list[str | bytes | int]:
    new_id = secrets.token_hex(8)  # of the table, should this request make it: scripts have no chance of their own
    match request:
        case Join(silo, info, bootstrap):
            earlier = b"" if bootstrap else _write_about(earlier_row(f"earlier than {new_id}").info, False)
            return ["join", str(silo), new_id, msgspec.msgpack.encode(info), earlier]
        case Renew(silo, seen, prev, table):
            return ["renew", str(silo), new_id, seen, prev, table]
        case Rejoin(silo, info, status, known, cordoned):
            rows = [part for row in known.rows for part in (str(row.silo), _write_row(row))]
            return [
                "rejoin",
                str(silo),
                new_id,
                int(status),
                _write_about(info, cordoned),
                known.version,
                known.id,
                b"" if known.earlier is None else _write_row(known.earlier),
                *rows,
            ]
        case Advance(silo, status):
            return ["advance", str(silo), new_id, int(status)]
        case Cordon(silo, info, cordoned, version):
            wanted, other = _write_about(info, cordoned), _write_about(info, not cordoned)
            return ["cordon", str(silo), new_id, wanted, other, version]
        case Verdict(target, run, version, seq):
            return ["verdict", str(target), new_id, run, version, seq]
        case Bury(target):
            return ["bury", str(target), new_id]
        case Read():
            return ["read", "", new_id]
