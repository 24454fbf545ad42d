-- Tell the numbers of the commands that the user may not give, and give none of them.
-- KEYS: 1 how keys begin. ARGV: for each command how many words it has, and these; a word that
-- begins with @ is one of the keys. Servers before 7.0 cannot tell.
if not redis.acl_check_cmd then return {'unknown'} end
local found, at, number = {'known'}, 1, 0
while at <= #ARGV do
  local words = {}
  for word = at + 1, at + tonumber(ARGV[at]) do
    table.insert(words, (string.gsub(ARGV[word], '^@', KEYS[1] .. ':')))
  end
  -- A command that the server does not have raises.
  local done, may = pcall(redis.acl_check_cmd, unpack(words))
  if not (done and may) then table.insert(found, tostring(number)) end
  at, number = at + 1 + #words, number + 1
end
return found
