-- ARGV: 3 a limit. The reply: ok, tail, then LSN and tags of trimmed entries still there.
local reply = {'ok', tail}
for _, entry in ipairs(redis.call('XRANGE', log, '-', text(trimmed) .. '-0', 'COUNT', ARGV[3])) do
  reply[#reply + 1] = entry[1]
  reply[#reply + 1] = entry[2][TAGS] or '[]'
end
return reply
