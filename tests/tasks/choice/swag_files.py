"""Files of SWAG."""

HEADER = ',video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label'
SWAG = f"""{HEADER}
0,v1,34,A man sits. He,A man sits.,He,gold0-orig,stands up.,"says ""no"", twice.",eats.,runs.,1
1,v2,35,It rains. The,It rains.,The,gen-orig,"a
b",dog barks.,cat sleeps.,sun.,3
"""
# The published test file has its columns in another order, and no label.
TEST = """,video-id,fold-ind,startphrase,gold-source,sent1,sent2,ending0,ending1,ending2,ending3
0,v1,34,A B,gold,A,B,c,d,e,f
"""
