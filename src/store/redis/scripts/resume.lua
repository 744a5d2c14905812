-- Ends a pause, whoever made it.
--
-- ARGV[2]  unused
-- ARGV     channel, id
-- reply    flags: 2 the notice could not be sent
if stale then return pack('>dB', time, 1) end
local head = pcall('HGET', key, 'h')
if type(head) == 'table' then return refused(head, key) end
local failure = open(head)
if failure then return failure end
if pause > 0 then
  pause = 0
  failure = save(head, {false, false, false, false})
  if failure then return failure end
end
return pack('>dBB', time, 0, publish('r', ARGV[3], ARGV[4]))
