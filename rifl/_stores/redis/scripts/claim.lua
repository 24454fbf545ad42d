-- Decide about a call and claim it if it is new (DESIGN §4, steps 2 to 6).
--
-- ARGV: 5 member, 6 first incomplete, 7 completed ranges, 8 fingerprint, 9 kind,
-- 10 token, 11 owner, 12 refusing, 13 window, 14 max keys, 15 max key bytes,
-- 16 token to take over, 17 record of a lost call, 18 method, 19 retention of a key in
-- ms, empty for none, 20 whether this is a namespace, 21 until when this is good by this
-- clock, in ms, empty for ever. Of a key: 22 whose call it is of a session's writers, 23 when its
-- keys will be looked at according to the index, empty if that was not asked
local member, first, ranges, fingerprint, kind = ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local token, owner, take_over, lost = ARGV[10], ARGV[11], ARGV[16], ARGV[17]
local retention, namespace, filed = tonumber(ARGV[19]), ARGV[20] == '1', tonumber(ARGV[23])
if went_backwards() then return {'backwards', '0'} end
-- Whoever sent it has given it up, and taken back what could arrive in time.
if ARGV[21] ~= '' and now_ms() > tonumber(ARGV[21]) then return tell('late') end

local row = redis.call('HMGET', ROW, 'store', 'first', 'acks', 'state', 'length', 'keys', 'bytes',
  'look', 'full', 'writer')
local state, old_first, old_ranges = row[4], row[2], row[3] or ''
-- One that takes another writer's calls is closed to this one.
if state == 'session' and (row[10] or '') ~= (ARGV[22] or '') then state = 'closed' end
-- A namespace is always known: nobody grants it, and no lease of it ends.
local known_client = row[1] or namespace
local alive = known_client and (not state or state == 'session')
-- What a session keeps, it keeps as long as it lives.
if state == 'session' then retention = nil end

local function seen_alive()
  renew(row[5])
  if not is_key(member) then acknowledge(old_first, old_ranges, first, ranges) end
end

-- Whether somebody will look at these keys in time. The index that says when is in
-- another slot, so it is written before: an entry is never later than `look` here says,
-- and `look` never without an entry. One that is long over has lost its own.
local function is_filed()
  if not retention then return true end
  local now, look = now_ms(), tonumber(row[8])
  local function timely(at) return at and at > now - LATE_MS and at <= now + retention + LATE_MS end
  if timely(look) then return true end
  -- In the past, it may have been looked at and removed already.
  if not timely(filed) or filed <= now then return false end
  redis.call('HSET', ROW, 'look', ARGV[23])
  return true
end

local function claim()
  local r = is_key(member) and retention or nil
  redis.call('HSET', RUN, member, cmsgpack.pack(
    {t = token, o = owner, k = kind, f = fingerprint, m = ARGV[18], w = {}, r = r, c = now_ms()}))
  -- Which plain calls run is kept in one place as well, so that those whose replica is gone can be
  -- counted.
  if kind == 'plain' then
    redis.call('HSET', shared .. 'intents', field_of(member),
      string.format('%.0f', now_ms()) .. '\n' .. owner)
  end
  -- What a transaction of the handler's watches.
  if kind == 'atomic' then redis.call('SET', base .. 'try:' .. member, token) end
  return reply('new')
end

local attempt = running(member)
if attempt then
  if differ(fingerprint, attempt.f) then return tell('mismatch') end
  if alive then seen_alive() end
  if attempt.t == token then return reply('new') end
  if attempt.t == take_over then
    if lost == '' then
      -- It runs anew, so it is judged as if it were: what ended stays for the sweep.
      if not alive then return tell(state == 'closed' and 'closed' or 'unknown-client') end
      if ARGV[12] == '1' then return tell('refusing') end
      ended(member, attempt)
      return claim()
    end
    ended(member, attempt)
    complete(member, attempt, attempt.f, lost, true)
    return reply('completed', lost, attempt.f == '' and '0' or '1')
  end
  local noted = false
  for _, waiting in ipairs(attempt.w) do noted = noted or waiting == owner end
  if not noted and attempt.o ~= owner then
    table.insert(attempt.w, owner)
    redis.call('HSET', RUN, member, cmsgpack.pack(attempt))
  end
  return reply('running', attempt.t, attempt.o, attempt.k)
end

local known, record = completed(member)
if known then
  if differ(fingerprint, known) then return tell('mismatch') end
  if alive then seen_alive() end
  return reply('completed', record, known == '' and '0' or '1')
end

if state == 'closed' then return tell('closed') end
if not known_client or state == 'over' then return tell('unknown-client') end
if is_key(member) then
  if row[9] then
    -- The first call made in a session: it is kept for its retention from now on.
    row[5] = row[9]
    redis.call('HSET', ROW, 'length', row[9])
    redis.call('HDEL', ROW, 'full')
  end
  renew(row[5])
  if ARGV[12] == '1' then return reply('refusing') end
  if tonumber(row[6] or '0') >= tonumber(ARGV[14]) or tonumber(row[7] or '0') >= tonumber(ARGV[15])
  then return reply('window') end
  if not is_filed() then return reply('unfiled') end
  if not row[1] then redis.call('HSET', ROW, 'store', store) end
  count_key(1, #member - 1)
  return claim()
end
if state == 'session' then return tell('needs-key') end
if is_stale(member, old_first, old_ranges) then return tell('stale') end
seen_alive()
if ARGV[12] == '1' then return reply('refusing') end
if redis.call('ZCARD', SEQS) >= tonumber(ARGV[13]) then return reply('window') end
redis.call('ZADD', SEQS, 0, member)
return claim()
