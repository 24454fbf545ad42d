-- ARGV: 3 configuration; 4, 5, 6 condition; 7... metadata.
if not current(ARGV[3]) then return refusal() end
local good, value = holds(4)
if not good then return refusal(value) end
write_metadata(7)
return {'ok', tail}
