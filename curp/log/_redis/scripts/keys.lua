-- The reply: ok, tail, then key and value of all metadata.
local reply = {'ok', tail}
for _, part in ipairs(redis.call('HGETALL', metadata)) do reply[#reply + 1] = part end
return reply
