;;; qwen-companion-blame-test.el --- Tests of who wrote each line  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-changes-test-helper)
(require 'qwen-companion-blame)

(defmacro qwen-companion-blame-test-with (&rest body)
  "Run BODY in a file with lines 2 and 3 of an agent, and line 4 of the user.
Line 5 is the user's over one of the agent's."
  (declare (indent 0) (debug t))
  `(qwen-companion-changes-test-with '(("a.txt" "1\n2\n3\n4\n5\n6\n"))
     (qwen-companion-changes-test-turn "one" '(("a.txt" "1\nX\nY\n4\n5\n6\n")))
     (setq qwen-companion-changes-test-origins
           '((:origins ((:who agent :turn "one") (:who user) (:who user :turn "one"))
              :runs (:text "2 2 0 4 1 1 5 1 2"))))
     (switch-to-buffer (find-file-noselect "a.txt"))
     ,@body))

(defun qwen-companion-blame-test--margins ()
  "Return the text in the margin beside each line, or nil."
  (save-excursion
    (goto-char (point-min))
    (cl-loop until (eobp)
             collect (when-let* ((prefix (get-char-property (point) 'line-prefix)))
                       (string-trim (cadr (get-text-property 0 'display prefix))))
             do (forward-line 1))))

(defun qwen-companion-blame-test--requests ()
  "Return how often the journal was asked for authors."
  (cl-count 'journal-origins qwen-companion-test-calls :key #'car))

(defun qwen-companion-blame-test--idle ()
  "Let a little idle time go by."
  (qwen-companion-blame--refresh))

(ert-deftest qwen-companion-blame-test-margin-keys-and-off ()
  (qwen-companion-blame-test-with
    (let ((margins (window-margins)))
      (qwen-companion-blame)
      (should (equal (list nil (format-time-string "01-01 %H:%M qwen3-coder…  Make…" 0) "|" "you"
                           (format-time-string "you, over 01-01 %H:%M qwen3-co…" 0) nil)
                     (qwen-companion-blame-test--margins)))
      (should (equal qwen-companion-blame-width (car (window-margins))))
      (goto-char 3)
      (should (string-suffix-p
               ", qwen3-coder-plus, session s\n\nMake it\nso"
               (funcall
                (get-text-property
                 0 'help-echo
                 (cadr (get-text-property 0 'display (get-char-property (point) 'line-prefix)))))))
      (goto-char (point-min))
      (dolist (line '(2 4 5))
        (call-interactively (key-binding "n"))
        (should (= line (line-number-at-pos))))
      (should-error (call-interactively (key-binding "n")) :type 'user-error)
      (call-interactively (key-binding "p"))
      (should (= 4 (line-number-at-pos)))
      (should-error (call-interactively (key-binding (kbd "RET"))) :type 'user-error)
      ;; The lines of one turn, and its prompt.
      (goto-char 5)
      (call-interactively (key-binding "N"))
      (should (= 5 (line-number-at-pos)))
      (call-interactively (key-binding "P"))
      (should (= 2 (line-number-at-pos)))
      (call-interactively (key-binding (kbd "M-w")))
      (should (equal "Make it\nso" (current-kill 0)))
      (save-window-excursion
        (call-interactively (key-binding (kbd "RET")))
        (should (derived-mode-p 'qwen-companion-changes-mode))
        (should (looking-at-p ".*a\\.txt")))
      ;; It leaves nothing behind, also when it was called twice.
      (switch-to-buffer "a.txt")
      (qwen-companion-blame)
      (call-interactively (key-binding "q"))
      (should-not buffer-read-only)
      (should (equal margins (window-margins)))
      (should-not (overlays-in (point-min) (point-max)))
      (should-not (local-variable-p 'left-margin-width))
      (should-not (cl-find-if (lambda (timer) (string-match-p "blame" (format "%s" (timer--function timer))))
                              timer-idle-list))
      (should-not (memq 'blame qwen-companion-journal--watchers)))))

(ert-deftest qwen-companion-blame-test-follows-edits ()
  (qwen-companion-blame-test-with
    (qwen-companion-blame)
    (call-interactively #'read-only-mode)
    ;; A key is a key then.
    (should (eq (key-binding "n") 'self-insert-command))
    (let ((asked (qwen-companion-blame-test--requests)))
      (goto-char (point-min))
      (insert "n\n")
      (should (equal "|" (nth 3 (qwen-companion-blame-test--margins))))
      (should (= asked (qwen-companion-blame-test--requests)))
      (setq qwen-companion-changes-test-origins
            '((:origins ((:who user)) :runs (:text "1 1 0"))))
      (qwen-companion-blame-test--idle)
      (cl-flet ((sent () (cdr (assq 'journal-origins qwen-companion-test-calls))))
        (should (equal "n\n1\nX\nY\n4\n5\n6\n" (plist-get (sent) :text)))
        ;; As it would be saved.
        (pcase-dolist (`(,coding ,crlf ,encoded)
                       '((utf-8-dos t nil) (latin-1-unix nil "1\n\xe4\n") (utf-8-unix nil nil)))
          (let ((buffer-file-coding-system coding))
            (erase-buffer)
            (insert "1\nä\n")
            (qwen-companion-blame-test--idle)
            (should (eq crlf (plist-get (sent) :crlf)))
            (should (equal encoded (and (plist-get (sent) :encoded)
                                        (base64-decode-string (plist-get (sent) :text)))))))
        (erase-buffer)
        (insert "n\n1\nX\nY\n4\n5\n6\n")
        (qwen-companion-blame-test--idle))
      (should (equal '("you" nil nil nil nil nil nil) (qwen-companion-blame-test--margins)))
      ;; Nothing has changed since.
      (setq asked (qwen-companion-blame-test--requests))
      (qwen-companion-blame-test--idle)
      (should (= asked (qwen-companion-blame-test--requests)))
      (set-buffer-modified-p nil)
      (kill-buffer)
      (should-not (qwen-companion-journal-watched-p)))))

(ert-deftest qwen-companion-blame-test-errors-and-one-line ()
  (qwen-companion-blame-test-with
    (let ((qwen-companion-changes-test-plan (expand-file-name "plan.md")))
      (cl-flet ((said ()
                  (string-trim (string-remove-prefix "Asking the journal...\n"
                                                     (qwen-companion-test-messages (qwen-companion-blame-line))))))
        (write-region "# Plan\n1. One\u202e\n" nil "plan.md" nil 'silent)
        (goto-char 3)
        (should (string-match-p "\\`Qwen Code 0\\.24\\.4, .*\n\nMake it\nso\n\nThe approved plan:\n# Plan\n1. One\\\\u202E"
                                (said)))
        ;; Not there any more.
        (delete-file "plan.md")
        (should (string-suffix-p "Make it\nso" (said)))
        (goto-char (point-max))
        (should (equal "Not changed since the journal began" (said)))
        ;; Without the prompt, the author is shown.
        (goto-char 3)
        (puthash "one" 'unknown qwen-companion-journal--prompts)
        (should (string-match-p "\\`Qwen Code 0\\.24\\.4, " (said)))
        (remhash "one" qwen-companion-journal--prompts)
        (let ((ask (symbol-function 'qwen-companion-journal-ask)))
          (cl-letf (((symbol-function 'qwen-companion-journal-ask)
                     (lambda (method payload callback)
                       (if (eq method 'journal-prompts)
                           (funcall callback '(:error "it is busy"))
                         (funcall ask method payload callback)))))
            (should (string-match-p "\\`Qwen Code 0\\.24\\.4, " (said)))))
        (should (string-suffix-p "Make it\nso" (said))))
      (setq qwen-companion-changes-test-origins '((:error "the file is not a text")))
      (qwen-companion-test-said "The file is not a text" (qwen-companion-blame))
      (should-not qwen-companion-blame-mode)
      (should-not buffer-read-only))
    (with-temp-buffer
      (should-error (qwen-companion-blame) :type 'user-error)
      (should-not qwen-companion-blame-mode))))

(provide 'qwen-companion-blame-test)
;;; qwen-companion-blame-test.el ends here
