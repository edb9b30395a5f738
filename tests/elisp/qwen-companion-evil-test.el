;;; qwen-companion-evil-test.el --- Tests of Evil's selections  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-test-helper)

(declare-function evil-local-mode "ext:evil-core" (&optional arg))

(defun qwen-companion-evil-test--select (text keys)
  "Type KEYS in a file with TEXT, Evil on; return what was sent last."
  (unless (require 'evil nil t)
    (ert-skip "Evil is not installed (in Debian: elpa-evil)"))
  (qwen-companion-test-with-files `(("a.txt" ,text))
    (qwen-companion-test-with-backend
      (save-window-excursion
        (switch-to-buffer (find-file-noselect "a.txt"))
        (evil-local-mode)
        (execute-kbd-macro (kbd keys))
        (qwen-companion-context--update)
        ;; And on to the terminal that shall be asked.
        (switch-to-buffer (get-buffer-create "*terminal*"))
        (qwen-companion-context--update)
        (car (last (qwen-companion-test-sent 'context)))))))

(ert-deftest qwen-companion-evil-test-selections ()
  (pcase-dolist (`(,keys ,selected)
                 '(("w" nil)
                   ;; The character under the cursor belongs to it.
                   ("v" "o") ("wve" "two") ("wve o" "two")
                   ("wvb" "one t")
                   ("V" "one two\n") ("wVj" "one two\nthree\n")
                   ("w C-v j h" " t\nee") ("C-v j j l" "on\nth\nfo")
                   ("wve <escape>" nil)
                   ("ve y" nil)))
    (should (equal (list keys selected)
                   (list keys
                         (plist-get (qwen-companion-evil-test--select
                                     "one two\nthree\nfour\n" keys)
                                    :text))))))

(ert-deftest qwen-companion-evil-test-cursor ()
  "The place told is that of the cursor, at either end of the selection."
  (pcase-dolist (`(,keys ,line ,character)
                 '(("wve" 1 7) ("wveo" 1 5) ("wVj" 2 5)))
    (let ((sent (qwen-companion-evil-test--select "one two\nthree\n" keys)))
      (should (equal (list keys line character)
                     (list keys (plist-get sent :line)
                           (plist-get sent :character)))))))

(provide 'qwen-companion-evil-test)
;;; qwen-companion-evil-test.el ends here
