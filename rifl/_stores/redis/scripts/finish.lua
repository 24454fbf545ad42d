-- End an attempt: record the answer, or (ARGV[8] is 'abandon') make the call new
-- again, or ('look') only read what stands. Conditional on the attempt token. 'take-back'
-- abandons, too, and returns the clock. 'unknown' records that the outcome is not known,
-- 'left' the same where what the handler began may go on.
--
-- ARGV: 5 member, 6 token, 7 record, 8 what to do, 9 fingerprint, empty where none is
-- known but what came with the claim, 10 whether this is a namespace
local member, token, record, what = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
if went_backwards() then return {'backwards', '0'} end

local finishing = what == 'finish' or what == 'unknown' or what == 'left'

local function free()
  if is_key(member) then count_key(-1, 1 - #member) else redis.call('ZREM', SEQS, member) end
end

local attempt = running(member)
if not attempt and what ~= 'look' then
  resolved(member, token, what == 'unknown' or what == 'left')
end
if what == 'take-back' then
  local now = string.format('%.0f', now_ms())
  if not attempt or attempt.t ~= token then return tell('done', now) end
  ended(member, attempt)
  free()
  end_client()
  return reply('done', now)
end
if attempt then
  if attempt.t ~= token then return tell('fenced') end
  if what == 'look' then return tell('done') end
  ended(member, attempt)
  if finishing then
    complete(member, attempt, ARGV[9] ~= '' and ARGV[9] or attempt.f, record, what == 'left')
    if what == 'unknown' then remember(member, attempt) end
  else
    free()
  end
  end_client()
  return reply('done')
end
local kept = redis.call('HGET', DONE, member)
if kept then
  local head, standing = opened(kept)
  -- The same attempt's, by a request whose reply was lost?
  if finishing and standing == record then return tell('done') end
  if finishing and what ~= 'left' and head.t == token then
    -- Taken for lost, it has ended after all: nobody has to wait for its replica any more.
    redis.call('HSET', DONE, member, closed({m = head.m}, head.f, head.c, standing))
    return reply('stands', standing)
  end
  return tell('stands', standing)
end
if not finishing then return tell('done') end
-- It is alive, and its row goes with its last key.
if ARGV[10] == '1' then return tell('fenced') end
local row = redis.call('HMGET', ROW, 'store', 'first', 'acks', 'state')
if not row[1] or row[4] == 'over' or row[4] == 'closed' then return tell('gone') end
if not is_key(member) and is_stale(member, row[2], row[3]) then return tell('acknowledged') end
return tell('fenced')
