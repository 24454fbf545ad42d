-- Give a call whose outcome is unknown the answer that an operator knows, if nothing has
-- changed since it was seen.
-- ARGV: 5 member, 6 the attempt's token that was seen, empty for a recorded call, 7 the
-- record that was seen, 8 the record
local member, seen_token, seen_record, record = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
if went_backwards() then return {'backwards', '0'} end

local attempt = running(member)
if attempt then
  if attempt.t ~= seen_token then return tell('changed') end
  ended(member, attempt)
  complete(member, attempt, attempt.f, record)
  end_client()
  return reply('settled')
end
local kept = redis.call('HGET', DONE, member)
if not kept then return tell('gone') end
local head, standing = opened(kept)
if seen_token ~= '' or standing ~= seen_record then return tell('changed') end
redis.call('HSET', DONE, member, closed({m = head.m}, head.f, head.c, record))
if is_key(member) then redis.call('HINCRBY', ROW, 'bytes', #record - #standing) end
return reply('settled')
