-- Runs a transaction's commands and moves the checkpoint, where the fence is the number (T1, T2).
-- What a script did before a command of it failed stays done: then the shard is marked as broken,
-- and is not moved. KEYS: the shard's row, its calls. ARGV: the number, position, seq, intent; how
-- many calls go, and their serials; how many commands, and of each whether it can write, how many
-- words it has, and these.
local row, calls = KEYS[1], KEYS[2]
local fence = redis.call('HGET', row, 'fence') or '0'
if fence ~= ARGV[1] then
  return {'fenced', fence}
end
local at = 5
local gone = tonumber(ARGV[at])
local first_command = at + 1 + gone
local wrote = false
at = first_command + 1
for number = 1, tonumber(ARGV[first_command]) do
  local writes, words = ARGV[at], tonumber(ARGV[at + 1])
  local reply = redis.pcall(unpack(ARGV, at + 2, at + 1 + words))
  if type(reply) == 'table' and reply['err'] then
    if wrote then
      redis.call('HSET', row, 'broken', reply['err'])
    end
    return {'failed', wrote and '1' or '0', reply['err'], number}
  end
  wrote = wrote or writes == '1'
  at = at + 2 + words
end
for number = 6, 5 + gone do
  redis.call('HDEL', calls, ARGV[number])
end
redis.call('HSET', row, 'position', ARGV[2], 'seq', ARGV[3], 'intent', ARGV[4], 'takeovers', 0,
  'attempts', 0)
return {'ok'}
