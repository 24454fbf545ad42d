-- What every script of ours begins with.
--
-- KEYS[1] is the row of a client, or another key of the slot. On a single server KEYS[2]
-- is the store's meta hash. On a cluster it is a key of the slot that never exists: while
-- the slot moves, its keys are on two servers, and a script would see half of them. With
-- a key missing among several, either server says TRYAGAIN before anything is done. Keys
-- of one client share its hash tag, so their names are made from ARGV[1].
--
-- ARGV: 1 prefix of the client's keys, 2 prefix of the store's keys, 3 the store's
-- id, 4 the highest position this replica has seen (-1: not kept here; -2: counted, but
-- not compared, in a transaction that could not be undone).
local base, global, store, seen = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
-- How the keys begin in which calls of many clients are found. On a cluster these are beside the
-- clients, so each bucket of clients has its own.
local shared = seen == -1 and string.match(base, '^.*}:') or global
local ROW, SEQS, RUN, DONE = base .. 'client', base .. 'seqs', base .. 'run', base .. 'done'
-- When the records of keyed calls may be let go, by member, in ms that were lived through;
-- below zero as long as nobody counted: then it is how long.
local ENDS = base .. 'ends'
local MAX_RANGES = 1024
-- How late one may be let go because somebody else was slow, or clocks of a cluster
-- differ: late is safe.
local LATE_MS = 60000
-- What a beat adds to the time that was lived through, at most.
local MOST_LIVED_MS = 2000
-- How long it is remembered that a call's outcome was unknown, and of how many calls.
local REMEMBERED_MS, REMEMBERED = 7 * 86400000, 10000
local FORGOTTEN_AT_ONCE = 1000
local position = 0

-- A store that has lost what it acknowledged says so once and for all: another id
-- (it restarted empty), or a position below one that was seen (it is stale).
local function went_backwards()
  if seen < 0 then
    local id = redis.call('HGET', ROW, 'store')
    return id and id ~= store
  end
  local meta = redis.call('HMGET', KEYS[2], 'store', 'position', 'stopped')
  position = tonumber(meta[2] or '0')
  if meta[1] == store and not meta[3] and position >= seen then return false end
  if meta[1] == store then redis.call('HSET', KEYS[2], 'stopped', '1') end
  return true
end

-- Messages, and whom they are for. They go last, and one that cannot be sent changes
-- nothing: a script is not undone.
local wakes = {}

-- The reply of a script that wrote nothing: status, position, and what follows.
local function tell(status, ...)
  for _, wake in ipairs(wakes) do redis.pcall('PUBLISH', wake[1], wake[2]) end
  return {status, tostring(position), ...}
end

-- And of one that may have written.
local function reply(status, ...)
  if seen ~= -1 then position = redis.call('HINCRBY', KEYS[2], 'position', 1) end
  return tell(status, ...)
end

-- One time for all of a script.
local known_ms
local function now_ms()
  if not known_ms then
    local time = redis.call('TIME')
    known_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  end
  return known_ms
end

local function renew(row_length)
  if row_length then
    redis.call('HSET', ROW, 'due', string.format('%.0f', now_ms() + tonumber(row_length)))
  end
end

-- What the store's own keys say of a call, by.
local function field_of(member) return string.match(base, '(%-?%d+)}?:$') .. '|' .. member end

-- A call's attempt is over: nobody may write under its token any more, and the
-- replicas that wait for it hear of it when all is written.
local function ended(member, attempt)
  redis.call('HDEL', RUN, member)
  if attempt.k == 'plain' then redis.call('HDEL', shared .. 'intents', field_of(member)) end
  -- Only an atomic attempt has one.
  if attempt.k ~= 'plain' and attempt.k ~= 'idempotent' then
    redis.call('DEL', base .. 'try:' .. member)
  end
  for _, owner in ipairs(attempt.w) do
    table.insert(wakes, {global .. 'wake:' .. owner, attempt.t})
  end
end

local function running(member)
  local packed = redis.call('HGET', RUN, member)
  return packed and cmsgpack.unpack(packed)
end

-- A record is kept after a head: the head's length in two bytes, and what is known of the
-- call (f fingerprint, m method, c when it was completed).
local function opened(kept)
  local high, low = string.byte(kept, 1, 2)
  local ends = 2 + 256 * high + low
  return cmsgpack.unpack(string.sub(kept, 3, ends)), string.sub(kept, ends + 1)
end

-- Where the outcome is unknown since a replica is gone, with o its name and t the attempt's
-- token, which may run still: see `settle`.
local function closed(attempt, fingerprint, at, record, lost)
  local head = {f = fingerprint, m = attempt.m, c = at}
  if lost then head.o, head.t = attempt.o, attempt.t end
  head = cmsgpack.pack(head)
  return string.char(math.floor(#head / 256), #head % 256) .. head .. record
end

local function completed(member)
  local kept = redis.call('HGET', DONE, member)
  if not kept then return nil end
  local head, record = opened(kept)
  return head.f, record
end

local function is_key(member) return string.sub(member, 1, 1) == 'k' end

local function count_key(keys, bytes)
  redis.call('HINCRBY', ROW, 'keys', keys)
  redis.call('HINCRBY', ROW, 'bytes', bytes)
end

-- Forget what is remembered for too long, by the time that was lived through, or too much.
local function forget_unknown(lived)
  local unknown, ages = shared .. 'unknown', shared .. 'unknown-at'
  local old = redis.call('ZRANGEBYSCORE', ages, '-inf',
    string.format('%.0f', lived - REMEMBERED_MS), 'LIMIT', 0, FORGOTTEN_AT_ONCE)
  if #old == 0 then
    local over = redis.call('ZCARD', ages) - REMEMBERED
    if over <= 0 then return end
    old = redis.call('ZRANGE', ages, 0, math.min(over, FORGOTTEN_AT_ONCE) - 1)
  end
  for _, field in ipairs(old) do
    redis.call('HDEL', unknown, field)
    redis.call('ZREM', ages, field)
  end
end

-- That a call's outcome is not known is remembered whatever becomes of its client. On a cluster
-- the time that was lived through is out of reach: there the clock says when it is forgotten.
local function keep_unknown(field, entry)
  local at = seen ~= -1 and redis.call('HGET', global .. 'age', 'lived')
    or string.format('%.0f', now_ms())
  redis.call('HSET', shared .. 'unknown', field, entry)
  redis.call('ZADD', shared .. 'unknown-at', at, field)
  if seen ~= -1 then return end
  forget_unknown(now_ms())
  redis.call('PEXPIRE', shared .. 'unknown', REMEMBERED_MS)
  redis.call('PEXPIRE', shared .. 'unknown-at', REMEMBERED_MS)
end

-- note: empty, or who runs it still, see `given_up`
local function remember(member, attempt, note)
  keep_unknown(field_of(member),
    string.format('%.0f', attempt.c) .. '\n' .. attempt.m .. '\n' .. (note or ''))
end

-- The caller of a plain call gave it up, and it may run still: then its replica says what became
-- of it (`resolved`), or is gone, and nobody knows.
local function given_up(member, attempt)
  remember(member, attempt, '@' .. attempt.o .. '@' .. attempt.t)
end

local function resolved(member, token, unknown)
  local field = field_of(member)
  local entry = redis.call('HGET', shared .. 'unknown', field)
  local ends = entry and #entry - #token or 0
  if ends < 1 or string.sub(entry, ends) ~= '@' .. token then return end
  if unknown then
    redis.call('HSET', shared .. 'unknown', field, (string.match(entry, '^(%d+\n.-\n)')))
  else
    redis.call('HDEL', shared .. 'unknown', field)
    redis.call('ZREM', shared .. 'unknown-at', field)
  end
end

-- lost: the replica that ran it is gone, as far as anybody knows.
local function complete(member, attempt, fingerprint, record, lost)
  local now = now_ms()
  redis.call('HSET', DONE, member, closed(attempt, fingerprint, now, record, lost))
  if lost then remember(member, attempt) end
  if not is_key(member) then return end
  redis.call('HINCRBY', ROW, 'bytes', #record)
  -- Its retention counts from here; on a cluster, where the counter is out of reach, from
  -- the first look at it.
  if attempt.r then
    local lived = seen ~= -1 and tonumber(redis.call('HGET', global .. 'age', 'lived'))
    local ends = lived and lived + MOST_LIVED_MS + attempt.r or -attempt.r
    redis.call('ZADD', ENDS, string.format('%.0f', ends), member)
  end
end

-- Seqs are 16 hexadecimal digits: a Lua number holds 53 bits. Ranges are half open,
-- pairs of seqs in one string, sorted and disjoint.
local function within(seq, ranges)
  for at = 1, #ranges, 32 do
    if seq < string.sub(ranges, at, at + 15) then return false end
    if seq < string.sub(ranges, at + 16, at + 31) then return true end
  end
  return false
end

local function is_stale(member, first, ranges)
  local seq = string.sub(member, 2)
  return (first and seq < first) or (ranges and within(seq, ranges))
end

-- A client that ended while it ran a call goes with the last one. A session's row
-- stays: it is what its calls are refused by.
local function end_client()
  local state = redis.call('HGET', ROW, 'state')
  if (state == 'over' or state == 'closed') and redis.call('HLEN', RUN) == 0 then
    redis.call('UNLINK', SEQS, DONE, ENDS)
    if state == 'over' then redis.call('DEL', ROW) end
  end
end

-- Series and number of a numbered session's field, the number such that it sorts as text.
local function numbered(field)
  local series, number = string.match(field, '^(%x*|.+)#(%d+)$')
  if series and #number <= 18 and (number == '0' or string.sub(number, 1, 1) ~= '0') then
    return series, string.rep('0', 18 - #number) .. number
  end
end

-- The highest number of a series that ended, and the id of its session; all up to it are
-- refused. Kept while a session of the series is held.
local function closed_up_to(series)
  local mark = redis.call('HGET', global .. 'series', series) or '|'
  return string.match(mark, '^(%d*)|(%d*)$')
end

local function open_numbers(series) return global .. 'series:' .. series end

-- What is kept of the secrets that open sessions, by their fields and by their series: closing
-- a number closes others, so a series has one owner, which counts while it is held.
local function own(field, secret)
  local series = numbered(field)
  redis.call('HSET', global .. 'owners', 'n' .. field, secret)
  if series then redis.call('HSET', global .. 'owners', 's' .. series, secret) end
end

-- Count names and open sessions of the address that a session was opened from, if any.
local function count_from(id, names, open)
  local source = redis.call('HGET', global .. 'sources', id)
  if not source then return end
  for key, more in pairs({['names-from'] = names, ['open-from'] = open}) do
    if more ~= 0 and redis.call('HINCRBY', global .. key, source, more) <= 0 then
      redis.call('HDEL', global .. key, source)
    end
  end
end

-- Whether one of the secrets shown ('new,old,older'), or the lack of one, opens a name and its
-- series; they open by the first from now on. A name that was never seen is anybody's.
local function is_owner(field, shown)
  local series = numbered(field)
  local known = redis.call('HEXISTS', global .. 'sessions', field) == 1
  local held = series and (redis.call('EXISTS', open_numbers(series)) == 1
    or redis.call('HEXISTS', global .. 'series', series) == 1)
  if not known and not held then return true end
  local owners = global .. 'owners'
  local kept = redis.call('HGET', owners, held and 's' .. series or 'n' .. field) or ''
  if not string.find(',' .. shown .. ',', ',' .. kept .. ',', 1, true) then return false end
  local newest = string.match(shown, '^[^,]*')
  if kept ~= newest and known then redis.call('HSET', owners, 'n' .. field, newest) end
  if kept ~= newest and held then redis.call('HSET', owners, 's' .. series, newest) end
  return true
end
