-- ARGV: 4 a prefix; 5 a key, 6 how many that follow it, whether their terms are over or not.
-- Behind the reply's beginning: each key that has the prefix, and its value.
local found = reply('ok')
-- A server that evicts takes whole keys.
if redis.call('EXISTS', names) ~= redis.call('EXISTS', values) then return {'damaged'} end
-- No key has the byte 255: it is in no text of UTF-8.
local from, to = '[' .. ARGV[4], '(' .. ARGV[4] .. '\255'
local wanted = ARGV[6] and redis.call('ZRANGEBYLEX', names, '(' .. ARGV[5], to, 'LIMIT', 0, ARGV[6])
  or redis.call('ZRANGEBYLEX', names, from, to)
for _, key in ipairs(wanted) do
  if ARGV[6] or not over(key) then
    local value = redis.call('HGET', values, key)
    if not value then return {'damaged'} end
    found[#found + 1] = key
    found[#found + 1] = value
  end
end
return found
