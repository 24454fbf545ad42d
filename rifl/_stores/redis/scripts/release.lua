-- Forget a call by hand: it is new from then on, and a late finisher is fenced.
-- ARGV: 5 member, 6 the attempt's token that was seen, empty for a recorded call
local member, seen_token = ARGV[5], ARGV[6]
if went_backwards() then return {'backwards', '0'} end

local attempt = running(member)
if attempt then
  if attempt.t ~= seen_token then return tell('changed') end
  ended(member, attempt)
  if is_key(member) then count_key(-1, 1 - #member) else redis.call('ZREM', SEQS, member) end
  end_client()
  return reply('released')
end
local known, record = completed(member)
if not known then return tell('gone') end
if seen_token ~= '' then return tell('changed') end
redis.call('HDEL', DONE, member)
if is_key(member) then
  count_key(-1, 1 - #member - #record)
  redis.call('ZREM', ENDS, member)
else
  redis.call('ZREM', SEQS, member)
end
return reply('released')
