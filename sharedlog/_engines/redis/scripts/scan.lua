-- ARGV: 4 a prefix. Behind the reply's beginning: each key that has it, and its value.
local found = reply('ok')
-- A server that evicts takes whole keys.
if redis.call('EXISTS', names) ~= redis.call('EXISTS', values) then return {'damaged'} end
-- No key has the byte 255: it is in no text of UTF-8.
for _, key in ipairs(redis.call('ZRANGEBYLEX', names, '[' .. ARGV[4], '(' .. ARGV[4] .. '\255')) do
  if not over(key) then
    local value = redis.call('HGET', values, key)
    if not value then return {'damaged'} end
    found[#found + 1] = key
    found[#found + 1] = value
  end
end
return found
