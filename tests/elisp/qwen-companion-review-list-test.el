;;; qwen-companion-review-list-test.el --- Tests of the list of proposals  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-test-helper)

(defmacro qwen-companion-review-list-test-with (files &rest body)
  "Run BODY with FILES and a connected companion, in an orderly frame."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-reviews ,files
     (unwind-protect
         (progn ,@body)
       (qwen-companion-list-close 'qwen-companion-diffs-mode))))

(defmacro qwen-companion-review-list-test-with-waiting (files &rest body)
  "Run BODY where the change of each of FILES, from 1 to 2, waits."
  (declare (indent 1) (debug t))
  `(let ((names ,files))
     (qwen-companion-review-list-test-with (mapcar (lambda (name) (list name "1\n")) names)
       (dolist (name names)
         (qwen-companion-test-propose name "2\n"))
       ,@body)))

(defun qwen-companion-review-list-test--lines ()
  "Return the lines of the list, each as a list of its columns."
  (with-current-buffer "*qwen-companion proposals*"
    (save-excursion
      (goto-char (point-min))
      ;; Below the names of the columns.
      (forward-line)
      (cl-loop until (eobp)
               collect (or (append (tabulated-list-get-entry) nil)
                           (list (string-trim (thing-at-point 'line t))))
               do (forward-line)))))

(defun qwen-companion-review-list-test--column (number)
  "Return the column NUMBER of all lines of the list, from 0."
  (mapcar (lambda (line) (nth number line)) (qwen-companion-review-list-test--lines)))

(defun qwen-companion-review-list-test--go-to (text)
  "Move point in the list to the line with TEXT."
  (set-buffer "*qwen-companion proposals*")
  (qwen-companion-test-go-to text)
  (beginning-of-line))

(ert-deftest qwen-companion-review-list-test-lists-waiting-proposals ()
  "File, CLI, project, size, age and state; the size when it is counted."
  (qwen-companion-review-list-test-with '(("src/a.txt" "1\n2\n3\n"))
    (let ((project (file-name-nondirectory (directory-file-name default-directory))))
      (qwen-companion-test-propose "src/a.txt" "1\nzwei\ndrei\nfour\n" :client "Qwen Code 0.24.4")
      (qwen-companion-diffs)
      (qwen-companion-test-wait-for
       (equal (list (list "src/a.txt" "Qwen Code 0.24.4" project "+3 -2" "0 s" "new"))
              (qwen-companion-review-list-test--lines))))))

(ert-deftest qwen-companion-review-list-test-names-another-cli-at-the-file ()
  "The header of a review does, while a proposal of the other CLI waits."
  (qwen-companion-review-list-test-with '(("a.txt" "1\n") ("b.txt" "1\n"))
    (cl-flet ((warns-p (proposal text)
                (cl-some (lambda (part) (and (stringp (cdr part)) (string-search text (cdr part))))
                         (qwen-companion-review-warning-parts proposal))))
      (let* ((one (qwen-companion-test-propose "a.txt" "2\n" :client "Qwen Code" :session "s"))
             (third (qwen-companion-test-propose "b.txt" "3\n" :client "Qwen Code" :session "s"))
             (other (qwen-companion-test-propose "a.txt" "3\n" :client "Gemini CLI" :session "t")))
        (should (warns-p one "Gemini CLI also proposes a change"))
        (should (warns-p other "Qwen Code also proposes a change"))
        (should-not (warns-p third "too"))
        (qwen-companion-test-propose "b.txt" "4\n" :client "Qwen Code" :session "u")
        ;; Two of one name are told apart.
        (let ((sessions '((:id "s" :client "Qwen Code" :version "1" :pid 11)
                          (:id "u" :client "Qwen Code" :version "1" :pid 12)
                          (:id "t" :client "Gemini CLI" :version "1" :pid 13))))
          (qwen-companion-test-set-sessions sessions)
          (should (warns-p third "Qwen Code in process 12 also proposes a change"))
          (qwen-companion-test-set-sessions
           (mapcar (lambda (session)
                     (append (list :directory (concat "/trees/" (plist-get session :id))) session))
                   sessions))
          (should (warns-p third "Qwen Code in u also proposes a change"))
          (should (warns-p one "Gemini CLI also proposes a change"))
          (qwen-companion-test-set-sessions nil))
        (qwen-companion-test-propose "c.txt" "4\n" :client "Qwen Code" :session "s")
        (should (equal '("s" "s" "s" "t" "u")
                       (mapcar #'qwen-companion-proposal-session (qwen-companion-review-grouped))))
        (qwen-companion-diffs)
        (should (equal '("a.txt" "a.txt" "b.txt" "b.txt" "c.txt")
                       (mapcar #'car (qwen-companion-review-list-test--lines))))
        (qwen-companion-diff-reject one)
        (should-not (warns-p other "too"))
        (puthash "turn" (list :id "turn" :who 'agent :cli "s" :client "Qwen Code" :end nil
                              :files (list (list :path (expand-file-name "a.txt"))))
                 qwen-companion-journal--turns)
        (unwind-protect
            (let ((qwen-companion-proposal-rival-functions '(qwen-companion-journal--rival)))
              (should (warns-p other "Qwen Code is also changing it"))
              (should-not (warns-p third "is changing"))
              (setf (qwen-companion-proposal-session other) "s")
              (should-not (warns-p other "too")))
          (remhash "turn" qwen-companion-journal--turns))))))

(ert-deftest qwen-companion-review-list-test-shows-against-what-another-cli-leaves ()
  "That is its text while it waits or is accepted, and the disk once it is rejected."
  (qwen-companion-review-list-test-with '(("a.txt" "1\n2\n3\n"))
    (cl-flet ((against (proposal)
                (with-current-buffer (qwen-companion-proposal-disk-buffer proposal)
                  (cons (buffer-string) (qwen-companion-test-header)))))
      (dolist (accepts '(nil t))
        (let ((one (qwen-companion-test-propose "a.txt" "ONE\n2\n3\n" :client "Qwen Code" :session "s"))
              (other (qwen-companion-test-propose "a.txt" "1\n2\nTHREE\n" :client "Gemini CLI" :session "t")))
          (qwen-companion-diff-open one)
          (should (string-match-p "on disk" (cdr (against one))))
          (should (equal "1\n2\n3\n" (car (against one))))
          (qwen-companion-diff-open other)
          (should (string-match-p "with the change by Qwen Code" (cdr (against other))))
          (should (equal "ONE\n2\n3\n" (car (against other))))
          (if (not accepts)
              (qwen-companion-diff-reject one)
            (qwen-companion-diff-accept one)
            (should (equal "ONE\n2\n3\n" (car (against other))))
            (write-region "ONE\n2\n3\n" nil "a.txt" nil 'silent)
            (qwen-companion-review-file-written (expand-file-name "a.txt")))
          (should (equal (if accepts "ONE\n2\n3\n" "1\n2\n3\n") (car (against other))))
          (unless accepts
            (should (string-match-p "on disk" (cdr (against other)))))
          ;; What the first one has written is part of it.
          (qwen-companion-diff-accept other)
          (should (equal (list 'accepted (if accepts "ONE\n2\nTHREE\n" "1\n2\nTHREE\n"))
                         (car (last (qwen-companion-test-outcomes)))))
          (write-region "1\n2\n3\n" nil "a.txt" nil 'silent))))))

(ert-deftest qwen-companion-review-list-test-fits-into-eighty-columns ()
  "The state does; the warnings after it continue below, and none is cut off."
  (qwen-companion-review-list-test-with '(("a.txt" "1\n"))
    (set-frame-size (selected-frame) 80 24)
    (setf (qwen-companion-proposal-warning
           (qwen-companion-test-propose "a.txt" "2\n" :client "Qwen Code 0.24.4"))
          "runs at the next commit")
    (qwen-companion-diffs)
    (should (<= (+ tabulated-list-padding
                   (cl-loop for (_ width) across tabulated-list-format sum (1+ width))
                   (length "on screen"))
                80))
    (should-not truncate-lines)
    (should word-wrap)
    (qwen-companion-test-go-to "new")
    (should (looking-at "  runs at the next commit"))))

(ert-deftest qwen-companion-review-list-test-new-file-and-edits-are-counted ()
  (qwen-companion-review-list-test-with nil
    (let ((proposal (qwen-companion-test-propose "new/a.txt" "1\n2\n")))
      (qwen-companion-diffs)
      (qwen-companion-test-wait-for (member "+2 -0" (car (qwen-companion-review-list-test--lines))))
      (qwen-companion-test-editing proposal (insert "0\n"))
      (with-current-buffer "*qwen-companion proposals*" (revert-buffer))
      (qwen-companion-test-wait-for (member "+3 -0" (car (qwen-companion-review-list-test--lines))))
      (should (member "new, edited" (car (qwen-companion-review-list-test--lines))))))
  ;; A file and a proposal that both have CR LF differ only in changed lines.
  (qwen-companion-review-list-test-with '(("a.txt" "1\r\n2\r\n"))
    (qwen-companion-test-propose "a.txt" "1\r\n3\r\n")
    (qwen-companion-diffs)
    (qwen-companion-test-wait-for (member "+1 -1" (car (qwen-companion-review-list-test--lines))))))

(ert-deftest qwen-companion-review-list-test-large-texts-are-not-counted ()
  (qwen-companion-review-list-test-with '(("a.txt" "1\n"))
    (let ((qwen-companion-review-list--count-limit 100))
      (qwen-companion-test-propose "a.txt" (make-string 200 ?x))
      (qwen-companion-diffs)
      (should (member "large" (car (qwen-companion-review-list-test--lines)))))))

(ert-deftest qwen-companion-review-list-test-follows-while-it-is-visible ()
  "Proposals come, are shown, put aside and end; point stays on its line."
  (qwen-companion-review-list-test-with '(("a.txt" "1\n") ("b.txt" "1\n"))
    (qwen-companion-diffs)
    (should (equal '("No open proposals") (qwen-companion-review-list-test--column 0)))
    (let ((a (qwen-companion-test-propose "a.txt" "2\n")))
      (should (equal '("a.txt") (qwen-companion-review-list-test--column 0)))
      (qwen-companion-test-propose "b.txt" "2\n" :session "session-2")
      (should (equal '("a.txt" "b.txt") (qwen-companion-review-list-test--column 0)))
      (qwen-companion-review-list-test--go-to "b.txt")
      (let ((window (get-buffer-window "*qwen-companion proposals*")))
        (set-window-point window (point))
        (select-window (next-window window))
        (qwen-companion-test-close a)
        (with-selected-window window
          (should (looking-at-p "  b\\.txt"))))
      (should (equal '("b.txt") (qwen-companion-review-list-test--column 0)))
      (qwen-companion-diff-reject)
      (should (equal '("No open proposals") (qwen-companion-review-list-test--column 0))))))

(ert-deftest qwen-companion-review-list-test-mouse ()
  "A click opens its review; the context menu acts on the line that is clicked."
  (qwen-companion-review-list-test-with '(("a.txt" "1\n") ("b.txt" "1\n"))
    (let ((qwen-companion-diff-style 'unified))
      (qwen-companion-test-propose "a.txt" "2\n")
      (qwen-companion-test-propose "b.txt" "2\n" :session "session-2")
      (qwen-companion-diffs)
      (should (member "Proposals" (qwen-companion-test-context-menu "b.txt")))
      (should (string-search "b.txt" (aref (tabulated-list-get-entry) 0)))
      (qwen-companion-test-context-menu "a.txt")
      (qwen-companion-test-click 'mouse-2 "b.txt")
      (should (equal "*qwen-companion hunks: b.txt*" (qwen-companion-test-selected))))))

(ert-deftest qwen-companion-review-list-test-keys-of-the-list ()
  (qwen-companion-review-list-test-with-waiting '("a.txt" "b.txt" "c.txt")
    (qwen-companion-diffs)
    (qwen-companion-review-list-test--go-to "b.txt")
    (call-interactively (key-binding (kbd "C-c C-c")))
    (qwen-companion-review-list-test--go-to "c.txt")
    (execute-kbd-macro (kbd "C-c C-k"))
    (should (equal '(accepted rejected) (mapcar #'car (qwen-companion-test-outcomes))))
    (qwen-companion-review-list-test--go-to "a.txt")
    (call-interactively (key-binding (kbd "RET")))
    (should (get-buffer-window "*qwen-companion proposal: a.txt*"))
    (qwen-companion-diff-reject)
    (should (get-buffer-window "*qwen-companion proposals*"))
    (set-buffer "*qwen-companion proposals*")
    (should-error (call-interactively (key-binding (kbd "RET"))) :type 'user-error)))

(ert-deftest qwen-companion-review-list-test-marks ()
  "Marked reviews are answered after one question, also in an updated list."
  (qwen-companion-review-list-test-with-waiting '("a.txt" "b.txt" "c.txt")
    (qwen-companion-diffs)
    (should (looking-at-p "  a\\.txt"))
    (should (qwen-companion-test-header-p "\\` 3 proposals  RET review  SPC show  A/K accept/reject"))
    (let (asked (answer nil))
      (qwen-companion-test-answering (lambda (question) (setq asked question) answer)
        (execute-kbd-macro "mmpu")
        (should (string-match-p "  1 marked  " (qwen-companion-test-header)))
        (should (equal "Marked" (save-excursion
                                  (qwen-companion-test-go-to "* a.txt")
                                  (get-text-property (match-beginning 0) 'help-echo))))
        (execute-kbd-macro "m")
        (revert-buffer)
        (should (equal '("* a" "  b" "* c")
                       (mapcar (lambda (line) (substring line 0 3))
                               (cdr (split-string (buffer-string) "\n" t)))))
        (execute-kbd-macro "A")
        (should (equal "Accept 2 proposals? " asked))
        (should (= 3 (length (qwen-companion-proposals))))
        (setq answer t)
        (execute-kbd-macro "A")
        (should (equal '(accepted accepted) (mapcar #'car (qwen-companion-test-outcomes))))
        ;; The one that is left is not asked about.
        (setq asked nil)
        (goto-char (point-min))
        (execute-kbd-macro "nK")
        (should-not asked)
        (should-not (qwen-companion-proposals))))))

(ert-deftest qwen-companion-review-list-test-answers-all-and-names-the-refused ()
  (qwen-companion-review-list-test-with-waiting '("a.txt" "b.txt")
    (write-region "other\n" nil "a.txt" nil 'silent)
    (qwen-companion-diffs)
    (qwen-companion-test-answering t
      (qwen-companion-test-refused "a\\.txt changed on disk after" (execute-kbd-macro (kbd "C-u A"))))
    (should (equal (list (expand-file-name "a.txt"))
                   (mapcar #'qwen-companion-proposal-path (qwen-companion-proposals))))))

(ert-deftest qwen-companion-review-list-test-shows-reviews-while-moving ()
  "Beside the list, which stays selected; RET goes to the review."
  (qwen-companion-review-list-test-with '(("a.txt" "1\n") ("b.txt" "1\n"))
    (let ((qwen-companion-diff-style 'unified)
          (list "*qwen-companion proposals*"))
      (dolist (file '("a.txt" "b.txt"))
        (qwen-companion-test-propose file "2\n"))
      (qwen-companion-diffs)
      (delete-other-windows)
      (pcase-dolist (`(,key . ,shown) '(("n") ("SPC" "*qwen-companion hunks: b.txt*") ("p" "*qwen-companion hunks: a.txt*")))
        (execute-kbd-macro (kbd key))
        (should (equal (append shown (list list)) (qwen-companion-test-shown)))
        (should (equal list (qwen-companion-test-selected))))
      (execute-kbd-macro (kbd "RET"))
      (should (equal "*qwen-companion hunks: a.txt*" (qwen-companion-test-selected))))))

(ert-deftest qwen-companion-review-list-test-stays-where-it-is-typed-into ()
  "It was opened from a review: that ends, or another is shown, and it stays selected."
  (dolist (style '(unified ediff))
    (qwen-companion-review-list-test-with '(("a.txt" "1\n") ("b.txt" "1\n"))
      (let ((qwen-companion-diff-style style))
        (qwen-companion-test-propose "a.txt" "2\n")
        (qwen-companion-test-propose "b.txt" "2\n")
        (qwen-companion-diff-open "a.txt")
        (qwen-companion-diffs)
        (cl-flet ((selected-p () (equal "*qwen-companion proposals*"
                                        (qwen-companion-test-selected))))
          (should (selected-p))
          (qwen-companion-reviews-next)
          (should (equal "b.txt" (qwen-companion-review-file (qwen-companion-review-shown))))
          (should (selected-p))
          (qwen-companion-diff-reject)
          (should (selected-p))
          (qwen-companion-diff-open "a.txt")
          (qwen-companion-diffs)
          ;; As when the CLI is answered in its terminal.
          (qwen-companion-test-close (car (qwen-companion-proposals)))
          (should-not (qwen-companion-proposals))
          (should (selected-p)))))))

(ert-deftest qwen-companion-review-list-test-sorts ()
  (qwen-companion-review-list-test-with '(("a.txt" "1\n") ("b.txt" "1\n") ("c.txt" "1\n"))
    (qwen-companion-test-propose "a.txt" "1\n2\n3\n")
    (qwen-companion-test-propose "b.txt" "1\n2\n")
    (qwen-companion-test-propose "c.txt" (make-string 1000 ?\n))
    (setf (qwen-companion-proposal-arrived (car (qwen-companion-proposals))) 0)
    (qwen-companion-diffs)
    (qwen-companion-test-wait-for
     (cl-every (lambda (size) (string-match-p "\\`\\+[0-9]" size)) (qwen-companion-review-list-test--column 3)))
    (cl-flet ((sorted (column)
                (with-current-buffer "*qwen-companion proposals*"
                  (setq tabulated-list-sort-key (cons column nil))
                  (revert-buffer))
                (qwen-companion-review-list-test--column 0)))
      (should (equal '("b.txt" "a.txt" "c.txt") (sorted "Lines")))
      (should (equal "a.txt" (car (last (sorted "Age")))))
      (should (equal '("a.txt" "b.txt" "c.txt") (sorted "File"))))))

(ert-deftest qwen-companion-review-list-test-leaves-nothing-behind ()
  "No timer while it is not seen, no hook when it is gone."
  (qwen-companion-review-list-test-with nil
    (qwen-companion-diffs)
    (should (= 1 (length (qwen-companion-test-ticking))))
    (switch-to-buffer "*terminal*")
    (delete-other-windows)
    (mapc #'timer-event-handler (qwen-companion-test-ticking))
    (should-not (qwen-companion-test-ticking))
    (qwen-companion-diffs)
    (should (= 1 (length (qwen-companion-test-ticking))))
    (qwen-companion-list-close 'qwen-companion-diffs-mode)
    (should-not (qwen-companion-test-ticking))
    (should-not qwen-companion-proposal-changed-hook)))

(ert-deftest qwen-companion-review-list-test-names-cannot-break-the-list ()
  (qwen-companion-review-list-test-with nil
    (qwen-companion-test-propose "a\nb%s.txt" "2\n" :client "evil\n\u202ecli %b")
    (qwen-companion-diffs)
    (should (equal '("a\\nb%s.txt") (qwen-companion-review-list-test--column 0)))
    (should (equal '("evil\\n\\u202Ecli %b") (qwen-companion-review-list-test--column 1)))))

(ert-deftest qwen-companion-review-list-test-shows-the-end-of-a-long-name ()
  "The directory, or the place, of several files is the same; the mouse shows all."
  (qwen-companion-review-list-test-with-waiting '("a-long-directory/one.txt" "a-long-directory/two.txt")
    (qwen-companion-diffs)
    (should (equal '("…g-directory/one.txt" "…g-directory/two.txt")
                   (qwen-companion-review-list-test--column 0)))
    (qwen-companion-test-go-to "two.txt")
    (should (equal "a-long-directory/two.txt" (get-text-property (1- (point)) 'help-echo)))))

;;; The next one

(defun qwen-companion-review-list-test--reviewed ()
  "Return the file of the review in the selected window."
  (file-name-nondirectory
   (qwen-companion-proposal-path
    (buffer-local-value 'qwen-companion-proposal-current (window-buffer)))))

(ert-deftest qwen-companion-review-list-test-review-goes-round ()
  (qwen-companion-review-list-test-with '(("a.txt" "1\n") ("b.txt" "1\n") ("c.txt" "1\n"))
    (should-error (qwen-companion-review) :type 'user-error)
    (dolist (file '("a.txt" "b.txt" "c.txt"))
      (qwen-companion-test-propose file "2\n"))
    (dolist (file '("a.txt" "b.txt" "c.txt" "a.txt"))
      ;; Emacs draws before it looks for a shorter name of the command then.
      (qwen-companion-test-said (regexp-quote file)
        (with-current-buffer (window-buffer) (qwen-companion-review)))
      (should (equal file (qwen-companion-review-list-test--reviewed))))
    ;; From elsewhere it is the one on the screen.
    (select-window (get-buffer-window "*qwen-companion disk: a.txt*"))
    (with-temp-buffer
      (qwen-companion-review))
    (should (equal "a.txt" (qwen-companion-review-list-test--reviewed)))
    (dotimes (_ 3)
      (with-current-buffer (window-buffer)
        (qwen-companion-diff-reject (car (qwen-companion-proposals)))))
    (should (equal "*terminal*" (qwen-companion-test-selected)))
    (should (= 1 (length (window-list nil 'no-minibuffer))))))

(ert-deftest qwen-companion-review-list-test-in-a-terminal-its-own-first ()
  "Review, accept and reject are about the CLI of the terminal they are in."
  (qwen-companion-review-list-test-with '(("a.txt" "1\n") ("b.txt" "1\n") ("c.txt" "1\n"))
    (qwen-companion-test-with-terminal "session-2"
      (dolist (file '("a.txt" "b.txt"))
        (qwen-companion-test-propose file "2\n"))
      (qwen-companion-test-propose "c.txt" "2\n" :session "session-2")
      (qwen-companion-review)
      (should (equal "c.txt" (qwen-companion-review-list-test--reviewed)))
      (should (get-buffer-window "*terminal*"))
      (with-current-buffer "*terminal*" (qwen-companion-diff-accept))
      (should (equal '((accepted "2\n")) (qwen-companion-test-outcomes)))
      (should (equal '("session-1" "session-1")
                     (mapcar #'qwen-companion-proposal-session (qwen-companion-proposals))))
      ;; It has no more: whatever waits, and that is not clear.
      (with-current-buffer "*terminal*"
        (should-error (qwen-companion-diff-reject) :type 'user-error)
        (qwen-companion-review))
      (should (equal "a.txt" (qwen-companion-review-list-test--reviewed))))))

(provide 'qwen-companion-review-list-test)
;;; qwen-companion-review-list-test.el ends here
