"""How the grain directory lies in Redis: its keys, the text of a row, and the Lua scripts that change rows.

A cluster's rows are spread over DIRECTORY_BUCKETS buckets by the stable hash of the grain. A bucket is two hashes and
a set that share a Redis Cluster slot:

    silo:{CLUSTER:BUCKET}:entries     grain text -> row
    silo:{CLUSTER:BUCKET}:head        epoch -> the last epoch given in this bucket, run -> the Redis run that gave it,
                                      life -> the name of the bucket's life, settled -> 1 once that is settled
    silo:{CLUSTER:BUCKET}:said        the silos that have said in this life what they know

A row is one line of text, so that the scripts compare and compose it without decoding, and people read it with
`redis-cli`:

    FORMAT EPOCH INCARNATION ENDPOINT ACTIVATION KIND/KEY

The grain comes last because its key may hold blanks, and it comes at all so that a reader can tell that it got the row
it asked for. A row whose FORMAT is another one belongs to another release: no script matches it, so none replaces or
removes it.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

from silo.directory.addresses import CLUSTER_PATTERN, EPOCH_MAX, Entry, GrainId, SiloAddress, stable_hash
from silo.directory.contract import STRAYS_MAX, Registration
from silo.directory.errors import InvalidIdentity

DIRECTORY_BUCKETS: Final = 256
"""The buckets of every cluster's directory. Part of the stored format: with another number rows are not found."""
ROW_FORMAT: Final = "1"
LIFE_OVER: Final = 0
"""In the place of an epoch: the life in which a registration counts is over."""
RUN_JUMP: Final = 2**24
"""What a bucket's epochs skip when Redis has a new run id: increments may have been lost with the old one."""

BUCKETS_KNOWN_MAX: Final = 4_096
"""Of how many grains the bucket is remembered: one that is activated or moved is asked for its bucket ten times."""

_WORD = re.compile(r"[!-~]+")
"""Endpoints and activation ids are printable ASCII without blanks: the row's separator is a blank."""


class RowUnreadable(ValueError):
    """This text is no row of the format that this release reads."""


@lru_cache(BUCKETS_KNOWN_MAX)
def bucket_of(grain_text: str) -> int:
    """The bucket of the grain with this text form."""
    return stable_hash(grain_text) % DIRECTORY_BUCKETS


def bucket_keys(cluster: str) -> tuple[tuple[str, str, str], ...]:
    """The keys `(entries, head, said)` of every bucket of a cluster; raises InvalidIdentity."""
    if not CLUSTER_PATTERN.fullmatch(cluster):
        raise InvalidIdentity(f"cluster name {cluster!r} is not of the form {CLUSTER_PATTERN.pattern}")
    stems = (f"silo:{{{cluster}:{bucket}}}" for bucket in range(DIRECTORY_BUCKETS))
    return tuple((f"{stem}:entries", f"{stem}:head", f"{stem}:said") for stem in stems)


def check_registration(asked: Registration) -> None:
    """Refuse what no directory could store or compare; raises InvalidIdentity."""
    if not _WORD.fullmatch(asked.silo.endpoint) or not _WORD.fullmatch(asked.activation):
        raise InvalidIdentity(
            "endpoints and activation ids are printable ASCII without blanks, unlike "
            f"{asked.silo.endpoint!r} or {asked.activation!r}"
        )
    if asked.expected is not None and asked.expected.grain != asked.grain:
        raise InvalidIdentity(f"a registration of {asked.grain} cannot expect the row of {asked.expected.grain}")
    if not 0 <= epoch_before(asked) < EPOCH_MAX:
        raise InvalidIdentity(f"epoch {epoch_before(asked)} is out of range: epochs are below 2**53")


def epoch_before(asked: Registration) -> int:
    """The epoch that the registration's own must exceed, whatever the bucket's counter says."""
    return asked.floor if asked.expected is None else max(asked.floor, asked.expected.epoch)


def row_tail(silo: SiloAddress, activation: str, grain_text: str) -> str:
    """The part of a row that the asker knows before an epoch is given."""
    return f"{silo.incarnation} {silo.endpoint} {activation} {grain_text}"


def row_owner(silo: SiloAddress) -> str:
    """What follows the epoch in the rows that name this silo."""
    return f"{silo.incarnation} {silo.endpoint} "


def pack_row(entry: Entry) -> bytes:
    """The row of an entry, to the byte: what a script compares with."""
    return f"{ROW_FORMAT} {entry.epoch} {row_tail(entry.silo, entry.activation, str(entry.grain))}".encode()


def unpack_row(row: bytes) -> Entry:
    """The entry that a row holds; raises RowUnreadable for any other format, and for bytes that are none."""
    try:
        row_format, epoch, incarnation, endpoint, activation, grain_text = row.decode().split(" ", 5)
    except ValueError:
        raise RowUnreadable(f"{row[:80]!r} is not a directory row") from None
    if row_format != ROW_FORMAT:
        raise RowUnreadable(f"its format is {row_format[:20]!r}, this release reads format {ROW_FORMAT}")
    kind, slash, key = grain_text.partition("/")
    if not (slash and epoch.isdecimal() and incarnation.isdecimal()):
        raise RowUnreadable(f"{row[:80]!r} is not a directory row")
    return Entry(GrainId(kind, key), SiloAddress(endpoint, int(incarnation)), activation, int(epoch))


class Script:
    """A Lua script, and the name under which a server that ran it once keeps it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


_RUN: Final = """
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
if not run then return redis.error_reply('SILO this server does not tell its run_id') end
"""
"""Asks which run of Redis this is, once for all buckets of a script: it takes longer than all else for one grain."""

_HEAD: Final = f"""
local known = redis.call('HMGET', head, 'epoch', 'run', 'life', 'settled')
local counter, life, settled = tonumber(known[1] or '0'), known[3] or '', known[4] == '1'
if known[2] and known[2] ~= run then
  counter = counter + {RUN_JUMP}
  life, settled = '', false
end
"""
"""Reads the head of a bucket; a life of another run is over, since the store may have come back as it was earlier."""

LOOKUP: Final = Script("""
-- KEYS: entries of each bucket. ARGV, for each bucket in turn: how many grains of it follow, and these.
-- Answers, for each grain, with its row; nil where there is none.
local rows, at = {}, 1
for _, entries in ipairs(KEYS) do
  local last = at + tonumber(ARGV[at])
  for i = at + 1, last do rows[#rows + 1] = redis.call('HGET', entries, ARGV[i]) end
  at = last + 1
end
return rows
""")

REGISTER: Final = Script(f"""
-- KEYS: entries and head of each bucket. ARGV, for each bucket in turn: the life in which this counts ('' for any), how
--     many registrations follow, and four for each: grain, the row expected ('' for none), the epoch to exceed, tail.
-- Answers, for each, with the epoch that was given; or, where none was, with the row that stands, nil where there is
--     none, {LIFE_OVER} if the life is over.
{_RUN}
local call, format, KEYS, ARGV = redis.call, string.format, KEYS, ARGV
local standing, count, at, exhausted = {{}}, 0, 1, nil
local function bucket(entries, head, asked, last)
  {_HEAD}
  if asked ~= '' and asked ~= life then
    for _ = at, last, 4 do
      count = count + 1
      standing[count] = {LIFE_OVER}
    end
    return
  end
  local changed, size, rows, text = {{}}, 0, {{}}, nil
  for i = at, last, 4 do
    local grain, expected = ARGV[i], ARGV[i + 1]
    local row = rows[grain]
    if row == nil then row = call('HGET', entries, grain) end
    local answer = row
    if (expected == '' and not row) or (expected ~= '' and row == expected) then
      local epoch = tonumber(ARGV[i + 2])
      if epoch < counter then epoch = counter end
      epoch = epoch + 1
      if epoch < {EPOCH_MAX} then
        counter, answer, text = epoch, epoch, format('%.0f', epoch)
        row = '{ROW_FORMAT} ' .. text .. ' ' .. ARGV[i + 3]
        changed[size + 1], changed[size + 2] = grain, row
        size = size + 2
      else
        exhausted = entries
      end
    end
    rows[grain] = row
    count = count + 1
    standing[count] = answer
  end
  if size > 0 then
    -- The counter first: were the script cut short here, epochs would be skipped but none given twice.
    call('HSET', head, 'epoch', text)
    if known[2] ~= run then call('HSET', head, 'run', run) end
    if life == '' then call('HDEL', head, 'life') end
    call('HSET', entries, unpack(changed))
  end
end
for k = 1, #KEYS, 2 do
  local asked, last = ARGV[at], at + 1 + 4 * tonumber(ARGV[at + 1])
  at = at + 2
  bucket(KEYS[k], KEYS[k + 1], asked, last)
  at = last + 1
end
if exhausted then return redis.error_reply('SILO the epochs of ' .. exhausted .. ' are used up') end
return standing
""")

CLAIM: Final = Script(f"""
-- KEYS: entries, head, said. ARGV: the silo, the life in which this counts ('' for any), a life that is over ('' for
--     none), how the name of a life that begins begins, 1 if with this the silo has said all, what other rows of the
--     silo contain ('' not to look for them), an epoch that was given, then three for each row: grain, epoch, row.
-- Answers: the life, 1 if it is settled, the row that stands afterwards for each that was claimed, and then those other
--     rows; no rows if the life is another, or begins because the silo brings something that was settled without it.
local entries, head, said = KEYS[1], KEYS[2], KEYS[3]
{_RUN}{_HEAD}
if ARGV[2] ~= '' and ARGV[2] ~= life then return {{life, settled and 1 or 0}} end
local function begin()
  -- By the clock: this very request may be carried out once more, when what it began is lost; a life comes but once.
  local now = redis.call('TIME')
  life, settled = ARGV[4] .. '.' .. now[1] .. '.' .. now[2], false
  redis.call('DEL', said)
end
local was, given = life, counter
counter = math.max(counter, tonumber(ARGV[7]))
if life == '' or life == ARGV[3] then begin() end
local standing, rows, news, highest = {{}}, {{}}, {{}}, counter
for i = 8, #ARGV, 3 do
  local grain, epoch = ARGV[i], tonumber(ARGV[i + 1])
  local row = rows[grain] or redis.call('HGET', entries, grain)
  local stands = row and string.match(row, '^{ROW_FORMAT} (%d+) ')
  if not row or (stands and tonumber(stands) < epoch) then
    row = ARGV[i + 2]
    highest = math.max(highest, epoch)
    news[grain] = row
  end
  rows[grain] = row
  standing[#standing + 1] = row
end
local unheard = next(news) and settled and redis.call('SISMEMBER', said, ARGV[1]) == 0
if unheard then begin() else counter = highest end
if life ~= was or counter ~= given or known[2] ~= run then
  redis.call('HSET', head, 'epoch', string.format('%.0f', counter), 'run', run, 'life', life,
    'settled', settled and 1 or 0)
end
if unheard then return {{life, 0}} end
for grain, row in pairs(news) do redis.call('HSET', entries, grain, row) end
if ARGV[5] == '1' then redis.call('SADD', said, ARGV[1]) end
if ARGV[6] ~= '' then
  local fields, strays = redis.call('HGETALL', entries), 0
  for i = 1, #fields, 2 do
    local _, head_end = string.find(fields[i + 1], '^{ROW_FORMAT} %d+ ')
    local is_mine = head_end and string.sub(fields[i + 1], head_end + 1, head_end + #ARGV[6]) == ARGV[6]
    if is_mine and rows[fields[i]] ~= fields[i + 1] and strays < {STRAYS_MAX} then
      strays = strays + 1
      standing[#standing + 1] = fields[i + 1]
    end
  end
end
return {{life, settled and 1 or 0, unpack(standing)}}
""")

INQUIRE: Final = Script(f"""
-- KEYS: entries, head, said. ARGV: a life, and those who live. That life is settled if all of them have said in it what
--     they know.
-- Answers: the life of the bucket, and 1 if it is settled.
local head, said = KEYS[2], KEYS[3]
{_RUN}{_HEAD}
if life ~= '' and not settled and life == ARGV[1] and #ARGV > 1 then
  settled = true
  for i = 2, #ARGV do
    if redis.call('SISMEMBER', said, ARGV[i]) == 0 then settled = false end
  end
  if settled then redis.call('HSET', head, 'settled', 1) end
end
return {{life, settled and 1 or 0}}
""")

UNREGISTER: Final = Script("""
-- KEYS: entries of each bucket. ARGV, for each bucket in turn: how many rows follow, and two for each: grain, the row
--     to remove.
-- Answers, for each: 1 it was removed, 0 no row stood there, -1 another one stands.
local answers, at = {}, 1
for _, entries in ipairs(KEYS) do
  local last = at + 2 * tonumber(ARGV[at])
  for i = at + 1, last, 2 do
    local row = redis.call('HGET', entries, ARGV[i])
    if row == ARGV[i + 1] then
      redis.call('HDEL', entries, ARGV[i])
      answers[#answers + 1] = 1
    else
      answers[#answers + 1] = row and -1 or 0
    end
  end
  at = last + 1
end
return answers
""")

PROBE: Final = Script("""
-- Answers with the server's run id and version: whether scripts may ask for them, which REGISTER needs.
local server = redis.call('INFO', 'server')
return {string.match(server, 'run_id:(%w+)') or '', string.match(server, 'redis_version:(%S+)') or ''}
""")
