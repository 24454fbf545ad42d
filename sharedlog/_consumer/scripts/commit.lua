-- Runs a transaction's commands and moves the checkpoint, where the fence is the number (T1, T2).
-- It has parts, one for each message: none runs behind one of which a command fails. What that had
-- done before stays done: then the shard is marked as broken, and is not moved past it.
-- KEYS: the shard's row, its calls. ARGV: the number; the seq without outputs, and with; how many
-- parts, and of each: position, the head of the intent until there, its own piece of it, what it is
-- called; how many calls go, and their serials; how many commands, and of each whether it can write,
-- how many words it has, and these.
local row, calls = KEYS[1], KEYS[2]
local fence = redis.call('HGET', row, 'fence') or '0'
if fence ~= ARGV[1] then
  return {'fenced', fence}
end
local at, done, pieces = 5, 0, {}
local position, head, refused
for part = 1, tonumber(ARGV[4]) do
  local first, gone = at, tonumber(ARGV[at + 4])
  local commands = tonumber(ARGV[at + 5 + gone])
  local wrote = false
  at = at + 6 + gone
  for number = 1, commands do
    local writes, words = ARGV[at], tonumber(ARGV[at + 1])
    local reply = redis.pcall(unpack(ARGV, at + 2, at + 1 + words))
    if type(reply) == 'table' and reply['err'] then
      refused = {'failed', wrote and '1' or '0', reply['err'], number, done}
      if wrote then
        redis.call('HSET', row, 'broken', ARGV[first + 3] .. ': ' .. reply['err'])
      end
      break
    end
    wrote = wrote or writes == '1'
    at = at + 2 + words
  end
  if refused then
    break
  end
  for number = first + 5, first + 4 + gone do
    redis.call('HDEL', calls, ARGV[number])
  end
  done, position, head = part, ARGV[first], ARGV[first + 1]
  pieces[part] = ARGV[first + 2]
end
if done > 0 then
  local intent = head .. table.concat(pieces)
  redis.call('HSET', row, 'position', position, 'seq', intent == '' and ARGV[2] or ARGV[3],
    'intent', intent, 'takeovers', 0, 'attempts', 0)
end
return refused or {'ok'}
