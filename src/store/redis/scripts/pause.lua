-- Admits nothing for a while from now, or longer if a longer pause holds.
--
-- ARGV[2]  how long
-- ARGV     channel, id
-- reply    what is left of the pause; flags: 2 the notice could not be sent
if stale then return pack('>dB', time, 1) end
local head = pcall('HGET', key, 'h')
if type(head) == 'table' then return refused(head, key) end
local failure = open(head)
if failure then return failure end
local finish = now + unpack('>d', ARGV[2])
if pause < finish then pause = finish end
keep(pause)
failure = save(head, {false, false, false, false})
if failure then return failure end
return pack('>dBdB', time, 0, pause - now, publish('p', ARGV[3], ARGV[4]))
