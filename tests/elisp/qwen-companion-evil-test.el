;;; qwen-companion-evil-test.el --- Tests of Evil's selections  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-changes-test-helper)
(require 'qwen-companion-chat-sessions)
(require 'qwen-companion-session-list)

(declare-function evil-local-mode "ext:evil-core" (&optional arg))
(declare-function evil-mode "ext:evil-core" (&optional arg))
(declare-function evil-set-initial-state "ext:evil-core" (mode state))
(defvar evil-state)

(defun qwen-companion-evil-test--select (text keys)
  "Type KEYS in a file with TEXT, Evil on; return the last snapshot sent."
  (unless (require 'evil nil t)
    (ert-skip "Evil is not installed (in Debian: elpa-evil)"))
  (qwen-companion-test-with-files `(("a.txt" ,text))
    (qwen-companion-test-with-backend
      (save-window-excursion
        (switch-to-buffer (find-file-noselect "a.txt"))
        (evil-local-mode)
        (execute-kbd-macro (kbd keys))
        (qwen-companion-test-context-update)
        ;; And on to the terminal that shall be asked.
        (switch-to-buffer (get-buffer-create "*terminal*"))
        (qwen-companion-test-context-update)
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
                         (plist-get (qwen-companion-evil-test--select "one two\nthree\nfour\n" keys)
                                    :text))))))

(ert-deftest qwen-companion-evil-test-cursor ()
  "The place told is that of the cursor, at either end of the selection."
  (pcase-dolist (`(,keys ,line ,character) '(("wve" 1 7) ("wveo" 1 5) ("wVj" 2 5)))
    (let ((sent (qwen-companion-evil-test--select "one two\nthree\n" keys)))
      (should (equal (list keys line character)
                     (list keys (plist-get sent :line) (plist-get sent :character)))))))

(ert-deftest qwen-companion-evil-test-keys-of-ours ()
  "Keys that a header line shows are the ones that work, Evil's motions stay."
  (unless (require 'evil nil t)
    (ert-skip "Evil is not installed (in Debian: elpa-evil)"))
  (unwind-protect
      (qwen-companion-test-with-reviews '(("a.txt" "1\n2\n3\n4\n5\n6\n7\n8\n"))
        (let ((qwen-companion-diff-style 'unified)
              (proposal (qwen-companion-test-propose "a.txt" "1\nTWO\n3\n4\nFIVE\n6\n7\n8\n")))
          (evil-mode 1)
          (qwen-companion-diff-open)
          (set-buffer (window-buffer))
          (should (string-search "k/u drop" (qwen-companion-test-header)))
          (execute-kbd-macro "jjj")
          (should (looking-at-p "\\+TWO"))
          (execute-kbd-macro "k")
          (should (equal "1\n2\n3\n4\nFIVE\n6\n7\n8\n"
                         (qwen-companion-proposal-text proposal)))
          ;; What Evil has selected, by its motion.
          (execute-kbd-macro "gVGk")
          (should (equal "1\n2\n3\n4\n5\n6\n7\n8\n" (qwen-companion-proposal-text proposal)))
          (execute-kbd-macro (kbd "C-/"))
          (should (string-search "FIVE" (qwen-companion-proposal-text proposal)))
          (qwen-companion-diffs)
          (should (equal "*qwen-companion proposals*" (buffer-name)))
          (execute-kbd-macro "mK")
          (should-not (qwen-companion-proposals))
          (dolist (mode '(qwen-companion-inspector-mode qwen-companion-diffs-mode
                          qwen-companion-unified-mode qwen-companion-chats-mode))
            (with-temp-buffer
              (funcall mode)
              (should (eq 'special (get mode 'mode-class)))
              (should (eq 'motion evil-state))))
          ;; The user's own choice counts.
          (evil-set-initial-state 'qwen-companion-chats-mode 'emacs)
          (with-temp-buffer
            (qwen-companion-chats-mode)
            (should (eq 'emacs evil-state)))
          (evil-set-initial-state 'qwen-companion-chats-mode 'motion)
          (qwen-companion-list-close 'qwen-companion-diffs-mode)))
    (evil-mode -1)))

(ert-deftest qwen-companion-evil-test-keys-of-lists ()
  "In the list of CLIs and the buffer of changes our keys come before Evil's."
  (unless (require 'evil nil t)
    (ert-skip "Evil is not installed (in Debian: elpa-evil)"))
  (unwind-protect
      (qwen-companion-changes-test-with '(("a.txt" "one\ntwo\n"))
        (evil-mode 1)
        (qwen-companion-changes-test-turn "1" '(("a.txt" "one\nTWO\n")))
        (qwen-companion-changes-test-open)
        (qwen-companion-changes-test-settle)
        (should (eq 'motion evil-state))
        (qwen-companion-changes-test-unfold "a.txt")
        (execute-kbd-macro "j")
        (should (looking-at-p " one"))
        (execute-kbd-macro "k")
        (should (equal "one\ntwo\n" (qwen-companion-changes-test-bytes "a.txt")))
        (qwen-companion-test-with-sessions '((:id "a" :client "qwen"))
          (qwen-companion-sessions)
          (unwind-protect
              (progn
                (set-buffer (window-buffer))
                (should (eq 'motion evil-state))
                (qwen-companion-test-first-row)
                (qwen-companion-test-refused "Cannot find the process of this CLI"
                  (execute-kbd-macro "k")))
            (qwen-companion-list-close 'qwen-companion-sessions-mode))))
    (evil-mode -1)))

(provide 'qwen-companion-evil-test)
;;; qwen-companion-evil-test.el ends here
