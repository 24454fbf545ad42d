-- ARGV: 4... keys. Behind the reply's beginning: their values, or nothing.
local found = reply('ok')
for place = 4, #ARGV do found[place + 1] = value_of(ARGV[place]) end
return found
