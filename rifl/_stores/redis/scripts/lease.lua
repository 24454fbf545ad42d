-- The row of a client, which is its lease. ARGV: 5 what to do, 6.. as it says
local what = ARGV[5]
if went_backwards() then return {'backwards', '0'} end
local row = redis.call('HMGET', ROW, 'store', 'state', 'length', 'due', 'name', 'full')
local state = row[2] or ''

if what == 'look' then
  if not row[1] then return tell('gone') end
  local seen = redis.call('HMGET', ROW, 'holder', 'first', 'acks')
  return tell('there', seen[1] or '', seen[2] or '1', seen[3] or '')
end

if what == 'grant' then
  -- 6 length in ms, 7 name of the session's field, empty for a client, 8 a session's length
  -- until a call is made in it, empty for one that is there, 9 whom the lease counts for.
  -- What ended stays so
  if state == 'closed' or state == 'over' then return tell(state) end
  local unused = ARGV[8] ~= '' and ARGV[8] or row[6] and row[3]
  local length = unused or ARGV[6]
  if unused then redis.call('HSET', ROW, 'full', ARGV[6]) end
  redis.call('HSET', ROW, 'store', store, 'length', length)
  if ARGV[9] ~= '' then redis.call('HSET', ROW, 'holder', ARGV[9]) end
  if ARGV[7] ~= '' then redis.call('HSET', ROW, 'state', 'session', 'name', ARGV[7]) end
  renew(length)
  return reply(redis.call('HGET', ROW, 'due'))
end

if what == 'write' then
  -- Have a session take the calls of 6 alone, if it takes those of 7: whose it takes then.
  if state ~= 'session' then return tell('gone') end
  local writer = redis.call('HGET', ROW, 'writer') or ''
  if writer == ARGV[7] then
    writer = ARGV[6]
    redis.call('HSET', ROW, 'writer', writer)
  end
  return reply('written', writer)
end

if what == 'renew' then
  if not row[1] or state == 'over' then return tell('unknown') end
  if state == 'closed' then return tell('closed') end
  renew(row[3])
  -- 6 first incomplete, 7 completed ranges: of a client, as those of a call
  if state == '' then
    local told = redis.call('HMGET', ROW, 'first', 'acks')
    acknowledge(told[1], told[2] or '', ARGV[6], ARGV[7])
  end
  return reply(state == 'session' and 'session' or 'alive')
end

if what == 'release' or what == 'close' then
  if not row[1] then return tell('gone') end
  redis.call('HSET', ROW, 'due', '0')
  if what == 'close' then
    redis.call('HSET', ROW, 'state', 'closed')
    -- Closed by its name, which is then refused, used or not.
    redis.call('HDEL', ROW, 'full')
  end
  return reply('done')
end

-- Retire what is due (6 is '1': only what was given up): refuse new calls, and drop all
-- of it as soon as no living replica (7..) runs a call of it. A session leaves its row, to
-- be refused by.
if not row[1] then return tell('gone') end
if state == 'closed' and not row[4] then return reply('tombstone', row[5]) end
if tonumber(row[4]) > (ARGV[6] == '1' and 0 or now_ms()) then return tell('alive', row[4]) end
local session = state == 'session' or state == 'closed'
if row[6] then
  -- No call was made in it: its name is to be forgotten, too. Between the two its id is
  -- already answered as one that nobody has.
  redis.call('HSET', ROW, 'state', 'over')
  return reply('unused')
end
redis.call('HSET', ROW, 'state', session and 'closed' or 'over')
local attempts = redis.call('HGETALL', RUN)
local living = {}
for at = 7, #ARGV do living[ARGV[at]] = true end
for at = 2, #attempts, 2 do
  if living[cmsgpack.unpack(attempts[at]).o] then return reply('busy') end
end
for at = 1, #attempts, 2 do
  local attempt = cmsgpack.unpack(attempts[at + 1])
  ended(attempts[at], attempt)
  if attempt.k == 'plain' then remember(attempts[at], attempt) end
end
redis.call('DEL', ROW, SEQS, RUN)
redis.call('UNLINK', DONE, ENDS)
if not session then return reply('dropped') end
redis.call('HSET', ROW, 'store', store, 'state', 'closed', 'name', row[5])
return reply('tombstone', row[5])
