-- Ends these leases and no others; late or twice is the same.
--
-- ARGV[2]  unused
-- ARGV     channel, id, the tokens
-- reply    flags: 2 a notice could not be sent
local freed = #ARGV > 4 and pcall('ZREM', leases, spread(ARGV, 5)) or 0
if type(freed) == 'table' then return refused(freed, leases) end
-- (A test's own commands go here.)
local flags = 0
if freed > 0 then
  local head = pcall('HGET', key, 'h')
  -- The leases are ended whatever the head is: those who wait ask again by themselves.
  if type(head) ~= 'table' and not open(head) and wanted > now then
    wanted = 0
    save(head, {false, false, false, false})
    flags = publish('f', ARGV[3], ARGV[4])
  end
end
return pack('>dBB', time, 0, flags)
