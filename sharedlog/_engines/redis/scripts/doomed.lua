-- ARGV: 4 through, 5 a limit. Behind the reply's beginning: LSN and tags of each entry up to there.
local found = reply('ok')
local through = text(math.min(tonumber(ARGV[4]), tail)) .. '-0'
for _, row in ipairs(redis.call('XRANGE', entries, '-', through, 'COUNT', ARGV[5])) do
  found[#found + 1] = row[1]
  found[#found + 1] = row[2][2] or ''
end
return found
