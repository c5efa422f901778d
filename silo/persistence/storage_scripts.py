"""How the states of grains lie in Redis: their keys, the text of their rows, and the Lua scripts that change them.

All states of one grain lie in one hash, which has one Redis Cluster slot; the slots are those of the directory's
buckets:

    silo:{CLUSTER:BUCKET}:state:KIND/KEY
        fence         FORMAT EPOCH ACTIVATION          who asked last, see contract.py
        head:NAME     FORMAT ETAG EXISTS SCHEMA CODEC  EXISTS is 0 for a state that was cleared
        body:NAME     the value, as its codec wrote it; absent where EXISTS is 0

Fence and heads are lines of text, so that people read them with `redis-cli`. A line whose FORMAT is another one belongs
to another release: no script replaces it. A hash without any body goes FENCE_KEPT_S after it was last changed.
"""

from __future__ import annotations

from typing import Final

from silo.directory.addresses import CLUSTER_PATTERN, GrainId
from silo.directory.directory_scripts import Script, bucket_of
from silo.directory.errors import InvalidIdentity, StoredStateUnreadable
from silo.persistence.contract import FENCE_KEPT_S, NO_ETAG, Change, StateBody, StoredState

STATE_FORMAT: Final = "1"


def check_cluster(cluster: str) -> None:
    """Raise InvalidIdentity for a name that could break out of its keys."""
    if not CLUSTER_PATTERN.fullmatch(cluster):
        raise InvalidIdentity(f"cluster name {cluster!r} is not of the form {CLUSTER_PATTERN.pattern}")


def state_key(cluster: str, grain: GrainId) -> str:
    """The key of a grain's states."""
    text = str(grain)
    return f"silo:{{{cluster}:{bucket_of(text)}}}:state:{text}"


def pack_head(change: Change) -> str:
    """The head of a state as a change leaves it."""
    if change.body is None:
        return f"{STATE_FORMAT} {change.etag} 0 0 0"
    return f"{STATE_FORMAT} {change.etag} 1 {change.body.schema} {change.body.codec}"


def unpack_state(what: str, head: bytes | None, body: bytes | None) -> StoredState:
    """What a head and its body say; raises StoredStateUnreadable for any other format, and for what is no state."""
    if head is None:
        if body is not None:
            raise StoredStateUnreadable(f"{what} has a body and no head")
        return StoredState(NO_ETAG)
    words = head.decode("utf-8", "replace").split(" ")
    if words[0] != STATE_FORMAT:
        raise StoredStateUnreadable(f"{what} is stored in format {words[0][:20]!r}; this release reads {STATE_FORMAT}")
    if len(words) != 5 or not words[3].isdecimal() or not words[4].isdecimal():
        raise StoredStateUnreadable(f"{what} has a head that is none: {head[:80]!r}")
    _, etag, exists, schema, codec = words
    if (exists == "1") != (body is not None):
        raise StoredStateUnreadable(f"{what} has a head that says {exists!r} of whether there is a value, and is wrong")
    return StoredState(etag, None if body is None else StateBody(int(schema), int(codec), body))


_FENCE: Final = f"""
-- Whether the asker's claim (ARGV: epoch, activation, ...) stands against the fence; answers with the fence.
local fence = redis.call('HGET', KEYS[1], 'fence')
local epoch, holder = 0, ''
if fence then
  local digits, name = string.match(fence, '^{STATE_FORMAT} (%d+) (%S+)$')
  if not digits then return {{'unreadable', fence}} end
  epoch, holder = tonumber(digits), name
end
local mine = tonumber(ARGV[1])
local replaced = mine < epoch or (mine == epoch and holder ~= ARGV[2])
local function claim()
  if mine ~= epoch then redis.call('HSET', KEYS[1], 'fence', '{STATE_FORMAT} ' .. ARGV[1] .. ' ' .. ARGV[2]) end
end
local function keep()
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, 1, 5) == 'body:' then return redis.call('PERSIST', KEYS[1]) end
  end
  redis.call('EXPIRE', KEYS[1], {FENCE_KEPT_S})
end
"""

READ: Final = Script(
    _FENCE
    + """
-- KEYS: the grain's hash. ARGV: epoch, activation, then the names of the states.
-- Answers: 'read' and then head and body of each; 'superseded' and the epoch; 'unreadable' and the line.
if replaced then return {'superseded', string.format('%.0f', epoch)} end
if mine ~= epoch then
  claim()
  keep()
end
local fields = {}
for i = 3, #ARGV do
  fields[#fields + 1] = 'head:' .. ARGV[i]
  fields[#fields + 1] = 'body:' .. ARGV[i]
end
local found = redis.call('HMGET', KEYS[1], unpack(fields))
return {'read', found}
"""
)

WRITE: Final = Script(
    _FENCE
    + f"""
-- KEYS: the grain's hash. ARGV: epoch, activation, name, the etag expected, '1' if a value is known to be there,
--     the new etag, the new head, and the new body unless the state is cleared.
-- Answers: 'written'; 'conflict' and the etag that stands; 'superseded' and the epoch; 'unreadable' and the line.
local head = redis.call('HGET', KEYS[1], 'head:' .. ARGV[3])
local etag = ''
if head then
  etag = string.match(head, '^{STATE_FORMAT} (%S+) ')
  if not etag then return {{'unreadable', head}} end
end
if etag == ARGV[6] then return {{'written'}} end
if replaced then return {{'superseded', string.format('%.0f', epoch)}} end
if head then
  if etag ~= ARGV[4] then return {{'conflict', etag}} end
elseif ARGV[5] == '1' then
  return {{'conflict', ''}}
end
claim()
redis.call('HSET', KEYS[1], 'head:' .. ARGV[3], ARGV[7])
if ARGV[8] then
  redis.call('HSET', KEYS[1], 'body:' .. ARGV[3], ARGV[8])
else
  redis.call('HDEL', KEYS[1], 'body:' .. ARGV[3])
end
keep()
return {{'written'}}
"""
)
