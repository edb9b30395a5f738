;;; qwen-companion-follow-test.el --- Tests of buffers that follow the disk  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The Python process is stood in for by git's own merge, which answers a
;; moment later, as the process does.  Files are written as a CLI does,
;; behind Emacs's back, and noticed by real watches.

;;; Code:

(require 'qwen-companion-test-helper)
(require 'autorevert)
(require 'smerge-mode)
(require 'so-long)
;; Else it would define anew what a test stands in for.
(load "userlock" nil t)


(defvar revert-buffer-preserve-modes)

;;; The stand-in

(defvar qwen-companion-follow-test-held nil
  "Non-nil means that answers wait in this list; see `...-release'.")

(defun qwen-companion-follow-test--merge (base mine theirs labels callback)
  "Stand in for `qwen-companion-merge-texts'.
BASE, MINE, THEIRS, LABELS and CALLBACK are as there."
  (let ((answer (qwen-companion-test-merge base mine theirs labels)))
    (if qwen-companion-follow-test-held
        (setq qwen-companion-follow-test-held
              (append qwen-companion-follow-test-held (list (lambda () (funcall callback answer)))))
      (run-at-time 0 nil callback answer))))

(defun qwen-companion-follow-test--release ()
  "Let the answers that are held back arrive."
  (let ((answers (cdr qwen-companion-follow-test-held)))
    (setq qwen-companion-follow-test-held nil)
    (mapc #'funcall answers)))

;;; Steps

(defmacro qwen-companion-follow-test-with (files &rest body)
  "Run BODY with FILES and a CLI connected, all writes being followed.
A question fails the test."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-files ,files
     (let ((inhibit-message t)
           (qwen-companion-roots--answer
            (list :roots (list (directory-file-name default-directory))))
           (qwen-companion-backend--noticed nil)
           (qwen-companion-backend--server
            (qwen-companion-test-server
             :sessions '((:id "1"))))
           (qwen-companion-follow-writes t)
           (qwen-companion-follow-test-held nil)
           ;; Most of these texts are so short that any change cuts them off.
           (qwen-companion-disk-idle-writer 0.2))
       (cl-letf (((symbol-function 'qwen-companion-merge-texts)
                  #'qwen-companion-follow-test--merge)
                 ((symbol-function 'ask-user-about-supersession-threat)
                  (lambda (&rest _) (ert-fail "Asked whether to edit")))
                 ((symbol-function 'yes-or-no-p)
                  (lambda (prompt) (ert-fail (list "Asked" prompt)))))
         (unwind-protect
             (progn
               (qwen-companion-follow-enable)
               ,@body)
           (qwen-companion-disk-forget-all)
           (qwen-companion-follow-disable))))))

(defun qwen-companion-follow-test--link (&optional buffer)
  "Return the state of following of BUFFER, or of the current one; nil for none."
  (buffer-local-value 'qwen-companion-follow--link (or buffer (current-buffer))))

(defun qwen-companion-follow-test--visit (file)
  "Visit FILE with undo, and return its buffer once it is followed."
  (let ((buffer (find-file-noselect file)))
    (with-current-buffer buffer
      (buffer-enable-undo)
      (qwen-companion-test-wait-for (qwen-companion-follow-test--link))
      buffer)))

(defmacro qwen-companion-follow-test-visiting (text &rest body)
  "Run BODY in a buffer that follows a.txt, a file with TEXT."
  (declare (indent 1) (debug t))
  `(qwen-companion-follow-test-with (list (list "a.txt" ,text))
     (with-current-buffer (qwen-companion-follow-test--visit "a.txt")
       ,@body)))

(defun qwen-companion-follow-test--write (file text &optional coding)
  "Write TEXT to FILE in CODING, as a CLI does, with a time of its own.
Another program does it: Emacs asks before it writes a file that it
visits and that has changed."
  (let ((coding-system-for-write (or coding 'utf-8-unix))
        (source (make-temp-file "written-")))
    (write-region text nil source nil 'silent)
    (make-directory (file-name-directory (expand-file-name file)) t)
    (call-process "cp" nil nil nil source (expand-file-name file))
    (delete-file source)
    (qwen-companion-follow-test--touch file)))

(defvar qwen-companion-follow-test--clock 0
  "Seconds by which the last write was in the future.")

(defun qwen-companion-follow-test--touch (file)
  "Give FILE a time that no buffer has seen, however coarse the clock."
  (set-file-times file (time-add nil (cl-incf qwen-companion-follow-test--clock))))

(defun qwen-companion-follow-test--write-held (file text)
  "Write TEXT to FILE, and hold back the merge that comes of it."
  (setq qwen-companion-follow-test-held (list t))
  (qwen-companion-follow-test--write file text)
  (qwen-companion-test-wait-for (cdr qwen-companion-follow-test-held)))

(defmacro qwen-companion-follow-test-written (file text &rest body)
  "Write TEXT to FILE, and run BODY in its buffer when that has followed."
  (declare (indent 2) (debug t))
  `(with-current-buffer (find-buffer-visiting ,file)
     (qwen-companion-follow-test--write ,file ,text)
     (qwen-companion-follow-test--wait)
     ,@body))

(defun qwen-companion-follow-test--behind-p ()
  "Return non-nil when the current buffer is to follow its file yet."
  (or qwen-companion-disk--pending-times
      qwen-companion-follow--queue
      (and (qwen-companion-follow--changed-p) (not (qwen-companion-follow--held-p)))
      (qwen-companion-follow--link-request (qwen-companion-follow-test--link))))

(defun qwen-companion-follow-test--wait ()
  "Wait until the current buffer has followed its file."
  (qwen-companion-test-wait-for (not (qwen-companion-follow-test--behind-p))))

;;; Unmodified buffers

(ert-deftest qwen-companion-follow-test-the-clock-is-set-back ()
  "The clock is set back between an event and the check of the file."
  (qwen-companion-follow-test-visiting "one\n"
    (with-current-buffer (find-buffer-visiting "a.txt")
      (qwen-companion-follow-test--write "a.txt" "two\n")
      (qwen-companion-test-wait-for qwen-companion-disk--pending-times)
      (let ((later (+ 3600 (float-time))))
        (setq qwen-companion-disk--pending-times (cons later later)))
      (qwen-companion-follow-test--wait)
      (should (equal "two\n" (buffer-string))))))

(ert-deftest qwen-companion-follow-test-a-write-is-one-undo-step ()
  (qwen-companion-follow-test-visiting "one\ntwo\nthree\nfour\n"
    (qwen-companion-follow-test-written "a.txt" "ONE\ntwo\nTHREE\nfour\nfive\n"
      (should (equal "ONE\ntwo\nTHREE\nfour\nfive\n" (buffer-string)))
      (should-not (buffer-modified-p))
      (should (verify-visited-file-modtime))
      (qwen-companion-test-undo)
      (should (equal "one\ntwo\nthree\nfour\n" (buffer-string)))
      (should (buffer-modified-p))
      ;; Saved like any other text; the question is about files that changed.
      (save-buffer)
      (should (equal "one\ntwo\nthree\nfour\n" (qwen-companion-test-file-text "a.txt"))))))

(ert-deftest qwen-companion-follow-test-undo-and-redo ()
  "Both ways of undoing and redoing cross changes of the user and of the CLI."
  (dolist (steps '(((undo other "one\ntwo\n" t) (undo undo "one\n" t)
                    ;; Another command in between: from here on it undoes the undoing.
                    (undo other "one\ntwo\n" t) (undo undo "one\ntwo\nthree\n" nil))
                   ((undo-only undo "one\ntwo\n" t) (undo-only undo "one\n" t)
                    (undo-redo undo "one\ntwo\n" t) (undo-redo undo "one\ntwo\nthree\n" nil)
                    (undo-only undo "one\ntwo\n" t))))
    (qwen-companion-follow-test-visiting "one\n"
      (qwen-companion-test-append "two\n")
      (undo-boundary)
      (save-buffer)
      (qwen-companion-follow-test-written "a.txt" "one\ntwo\nthree\n"
        (pcase-dolist (`(,command ,last-command ,text ,modified) steps)
          (ert-info ((format "%s to %S" command text))
            (let (this-command)
              (undo-boundary)
              (funcall command 1)
              (undo-boundary))
            (should (equal text (buffer-string)))
            (should (eq modified (and (buffer-modified-p) t)))))
        (save-buffer)
        (should (equal (buffer-string) (qwen-companion-test-file-text "a.txt")))))))

(ert-deftest qwen-companion-follow-test-the-same-text-is-no-change ()
  "Only the time is taken over; an unmodified buffer stays so, without undo."
  (qwen-companion-follow-test-visiting "one\n"
    (let ((tick (buffer-modified-tick)))
      (qwen-companion-test-silent (qwen-companion-follow-test-written "a.txt" "one\n"))
      (should (verify-visited-file-modtime))
      (should-not (buffer-modified-p))
      (should-not buffer-undo-list)
      (should (= tick (buffer-modified-tick))))))

(ert-deftest qwen-companion-follow-test-in-any-state-of-the-buffer ()
  (pcase-dolist (`(,prepare ,old ,written . ,text)
                 `((,(lambda () (setq case-fold-search t)) "one\n" "ONE\n")
                   (,(lambda () (read-only-mode 1)) "one\n" "two\n")
                   ;; The buffer equals the file, so it is unmodified.
                   (,(lambda () (insert "zero\n")) "one\n" "zero\none\n")
                   ;; The state of following outlives the buffer's local variables.
                   (,(lambda () (qwen-companion-test-append "mine\n") (emacs-lisp-mode))
                    "one\ntwo\nthree\n" "ONE\ntwo\nthree\n" "ONE\ntwo\nthree\nmine\n")))
    (qwen-companion-follow-test-visiting old
      (funcall prepare)
      (let ((read-only buffer-read-only))
        (qwen-companion-follow-test-written "a.txt" written
          (should (equal (or (car text) written) (buffer-string)))
          (should (eq read-only buffer-read-only))
          (should (eq (and text t) (buffer-modified-p))))))))

(ert-deftest qwen-companion-follow-test-hooks-of-a-revert ()
  "Both run, without a change of mode; an error in one is reported."
  (qwen-companion-follow-test-visiting "one\n"
    (let (ran)
      (add-hook 'before-revert-hook (lambda () (push (list 'before (buffer-string)) ran)) nil t)
      (add-hook 'after-revert-hook
                (lambda ()
                  (push (list 'after (buffer-string) (buffer-modified-p)
                              revert-buffer-preserve-modes
                              (verify-visited-file-modtime))
                        ran)
                  (error "Broken"))
                nil t)
      (qwen-companion-test-said "error in .after-revert-hook. of a\\.txt: Broken"
        (qwen-companion-follow-test-written "a.txt" "two\n"))
      (should (equal '((before "one\n") (after "two\n" nil t t)) (reverse ran))))))

(ert-deftest qwen-companion-follow-test-backup-after-it ()
  "The first save after it makes a backup of the text that the CLI wrote."
  (qwen-companion-follow-test-with '(("a.txt" "one\n"))
    (setq make-backup-files t)
    (with-current-buffer (qwen-companion-follow-test--visit "a.txt")
      ;; By default none is made of temporary files and those of a project.
      (setq-local backup-enable-predicate #'always backup-inhibited nil)
      (insert "x")
      (save-buffer)
      (should (equal "one\n" (qwen-companion-test-file-text "a.txt~")))
      (qwen-companion-follow-test-written "a.txt" "two\n"
        (goto-char (point-min))
        (insert "y")
        (save-buffer)
        (should (equal "ytwo\n" (qwen-companion-test-file-text "a.txt")))
        (should (equal "two\n" (qwen-companion-test-file-text "a.txt~")))))))

(ert-deftest qwen-companion-follow-test-one-message-for-many ()
  (qwen-companion-follow-test-with
      (mapcar (lambda (n) (list (format "%d.txt" n) "one\n")) (number-sequence 1 12))
    (let ((buffers (cl-loop for n from 1 to 12
                            collect (qwen-companion-follow-test--visit (format "%d.txt" n)))))
      (should (equal
               "qwen-companion: 12 buffers follow the changes on disk"
               (qwen-companion-test-messages
                 (cl-loop for n from 1 to 12
                          do (qwen-companion-follow-test--write (format "%d.txt" n) "two\n"))
                 (qwen-companion-test-wait-for
                  (cl-every (lambda (buffer)
                              (with-current-buffer buffer (equal "two\n" (buffer-string))))
                            buffers))
                 (qwen-companion-test-wait-for (null qwen-companion-follow--followed))))))))

(ert-deftest qwen-companion-follow-test-a-burst-ends-the-watch-for-a-while ()
  "Thousands of events are not taken one by one, and nothing is missed."
  (qwen-companion-follow-test-visiting "one\n"
    (qwen-companion-test-with-polling 0.1 5
      (qwen-companion-test-counting taken 'qwen-companion-disk--note-event
        (dotimes (number 500)
          (write-region "x" nil (format "%d.new" number) nil 'silent))
        (qwen-companion-test-wait-for (not (qwen-companion-test-notified-p)))
        (qwen-companion-follow-test--write "a.txt" "two\n")
        (qwen-companion-test-wait-for (equal "two\n" (buffer-string)))
        (qwen-companion-test-wait-for (qwen-companion-test-notified-p))
        ;; Each file gives two events at least.
        (should (< taken 800)))
      (qwen-companion-follow-test-written "a.txt" "three\n"
        (should (equal "three\n" (buffer-string)))))))

(ert-deftest qwen-companion-follow-test-300-files-written-at-once ()
  "All buffers follow, as after a branch switch; the watch is back afterwards."
  (let* ((write-region-inhibit-fsync t)
         (vc-handled-backends nil)
         (names (cl-loop for n from 1 to 300 collect (format "%d.txt" n)))
         (others (cl-loop for n from 1 to 200 collect (list (format "other-%d.txt" n) "one\n"))))
    (qwen-companion-follow-test-with
        (append others (mapcar (lambda (name) (list name "one\n")) names))
      (let ((new (make-temp-file "written-" t))
            (buffers (mapcar #'find-file-noselect names)))
        (qwen-companion-test-wait-for
         (cl-every (lambda (buffer) (qwen-companion-follow-test--link buffer)) buffers))
        (pcase-dolist (`(,name . ,_) (append others (mapcar #'list names)))
          (write-region "two\n" nil (expand-file-name name new) nil 'silent))
        ;; Of the size they had: it is the time that tells.
        (should (zerop (call-process "cp" nil nil nil "-r" (concat new "/.") ".")))
        (delete-directory new t)
        (qwen-companion-test-wait-for
         (and (qwen-companion-test-notified-p)
              (cl-every (lambda (buffer)
                          (with-current-buffer buffer
                            (and (equal "two\n" (buffer-string))
                                 (not (qwen-companion-follow-test--behind-p)))))
                        buffers)))
        (dolist (buffer buffers)
          (with-current-buffer buffer
            (should-not (buffer-modified-p))
            (should (verify-visited-file-modtime))
            (should-not (qwen-companion-follow-lighter))))
        ;; No key asks anything, and following goes on.
        (with-current-buffer (car buffers)
          (insert "mine\n")
          (save-buffer)
          (qwen-companion-follow-test-written (buffer-file-name) "three\n"
            (should (equal "three\n" (buffer-string)))))))))

(ert-deftest qwen-companion-follow-test-without-a-watch ()
  "The files are looked at now and then, which is said once."
  (qwen-companion-follow-test-with '(("a.txt" "one\n") ("b/b.txt" "one\n"))
    (let ((said
           (cl-letf (((symbol-function 'file-notify-add-watch)
                      (lambda (&rest _) (signal 'file-notify-error '("No space left on device")))))
             (qwen-companion-test-with-polling 0.5 0.1
               (qwen-companion-test-messages
                 (qwen-companion-follow-test--visit "a.txt")
                 (qwen-companion-follow-test--visit "b/b.txt")
                 (qwen-companion-follow-test-written "a.txt" "two\n"
                   (qwen-companion-test-wait-for (equal "two\n" (buffer-string)))))))))
      (should (string-match-p "cannot be watched (.*No space.*)" said))
      (should-not (string-match-p "cannot.*\n*.*cannot" said)))))

;;; Who follows

(ert-deftest qwen-companion-follow-test-outside-the-roots-and-without-a-cli ()
  (qwen-companion-follow-test-with '(("in/a.txt" "one\n") ("out/b.txt" "one\n"))
    (qwen-companion-roots-on-published (list :roots (list (expand-file-name "in")) :reachable t))
    (let ((inside (qwen-companion-follow-test--visit "in/a.txt"))
          (outside (find-file-noselect "out/b.txt")))
      (qwen-companion-follow-test-written "in/a.txt" "two\n")
      (should-not (qwen-companion-follow-test--link outside))
      (qwen-companion-test-set-sessions nil)
      (qwen-companion-follow-update)
      (qwen-companion-test-wait-for (null (qwen-companion-follow-test--link inside)))
      (should-not (qwen-companion-test-watched))
      ;; And again when one comes.
      (qwen-companion-test-set-sessions '((:id "2")))
      (qwen-companion-follow-test--write "in/a.txt" "three\n")
      (qwen-companion-follow-update)
      (with-current-buffer inside
        (qwen-companion-test-wait-for (equal "three\n" (buffer-string)))))))

(ert-deftest qwen-companion-follow-test-off-leaves-nothing ()
  (qwen-companion-follow-test-with '(("a.txt" "one\n") ("b.txt" "one\n"))
    (let ((behind (qwen-companion-follow-test--visit "a.txt"))
          (modified (qwen-companion-follow-test--visit "b.txt")))
      (with-current-buffer modified
        (qwen-companion-test-wait-for (equal 0 (visited-file-modtime)))
        (insert "mine\n"))
      (setq qwen-companion-follow-test-held (list t))
      (with-current-buffer behind
        (qwen-companion-follow-test--write "a.txt" "two\n")
        (qwen-companion-test-wait-for (cdr qwen-companion-follow-test-held))
        (should (local-variable-p 'before-save-hook)))
      (qwen-companion-follow-disable)
      (dolist (buffer (list behind modified))
        (with-current-buffer buffer
          (should-not (qwen-companion-follow-test--link))
          (should-not (memq 'qwen-companion-follow--before-save before-save-hook))))
      (with-current-buffer modified
        (should (verify-visited-file-modtime))
        (should-not (equal 0 (visited-file-modtime))))
      (should-not (qwen-companion-test-watched))
      (should-not (cl-remove-if-not (lambda (timer)
                                      (string-match-p "qwen-companion-\\(?:follow\\|disk\\)"
                                                      (format "%S" (timer--function timer))))
                                    (append timer-list timer-idle-list)))
      (should-not (get-buffer " *qwen-companion disk*"))
      (with-current-buffer behind
        (qwen-companion-follow-test--release)
        (should (equal "one\n" (buffer-string)))
        ;; Emacs asks again when the user edits it.
        (should-not (verify-visited-file-modtime))))))

(ert-deftest qwen-companion-follow-test-a-language-server-sees-an-edit ()
  "It gets the change only: some report nothing on a text they are given again."
  (let ((called nil)
        (changed nil))
    (cl-letf (((symbol-function 'eglot--signal-textDocument/didClose)
               (lambda () (push 'closed called)))
              ((symbol-function 'eglot--after-revert-hook)
               (lambda () (push 'opened called)))
              ;; Lsp-mode lets changes during a revert pass, and sends one by this.
              ((symbol-function 'lsp-on-revert)
               (lambda () (push 'changed called))))
      (qwen-companion-follow-test-visiting "one\n"
        (add-hook 'before-revert-hook 'eglot--signal-textDocument/didClose nil t)
        (add-hook 'after-revert-hook 'eglot--after-revert-hook nil t)
        (add-hook 'after-revert-hook 'lsp-on-revert nil t)
        (add-hook 'after-change-functions (lambda (&rest _) (setq changed t)) nil t)
        (qwen-companion-follow-test-written "a.txt" "two\n"
          (should (equal "two\n" (buffer-string))))))
    (should changed)
    (should (equal '(changed) called))))

(ert-deftest qwen-companion-follow-test-with-global-auto-revert ()
  "The first of the two to notice a change leaves the other nothing to do."
  (dolist (first '(follow auto-revert))
    (qwen-companion-follow-test-with '(("a.txt" "one\n"))
      (let ((reverts 0) (qwen-companion-disk-quiet
                         (if (eq first 'follow) 0.01 0.2))
            (auto-revert-use-notify (eq first 'auto-revert))
            (auto-revert-interval 0.2)
            (auto-revert-verbose nil))
        (with-current-buffer (qwen-companion-follow-test--visit "a.txt")
          (unwind-protect
              (progn
                (global-auto-revert-mode 1)
                (add-hook 'after-revert-hook (lambda () (cl-incf reverts)) nil t)
                (qwen-companion-follow-test-written "a.txt" "two\n"
                  (should (equal "two\n" (buffer-string)))
                  (let ((end (+ (float-time) 0.5)))
                    (qwen-companion-test-wait-for (> (float-time) end)))
                  (should (= 1 reverts))
                  (should-not (buffer-modified-p))))
            (global-auto-revert-mode -1)))))))

;;; Typing and saving between a write and the edits

(ert-deftest qwen-companion-follow-test-typing-meanwhile-is-merged ()
  "No key asks anything, and both texts are there."
  (qwen-companion-follow-test-visiting "one\ntwo\nthree\n"
    (qwen-companion-follow-test--write-held "a.txt" "ONE\ntwo\nthree\n")
    (goto-char (point-max))
    (let ((create-lockfiles t))
      (insert "mine\n"))
    (qwen-companion-follow-test--release)
    (qwen-companion-follow-test--wait)
    (should (equal "ONE\ntwo\nthree\nmine\n" (buffer-string)))
    (should (buffer-modified-p))
    (save-buffer)
    (should (equal "ONE\ntwo\nthree\nmine\n" (qwen-companion-test-file-text "a.txt")))))

(ert-deftest qwen-companion-follow-test-saving-meanwhile-waits-for-the-merge ()
  (qwen-companion-follow-test-visiting "one\ntwo\nthree\n"
    (qwen-companion-follow-test--write-held "a.txt" "ONE\ntwo\nthree\n")
    (qwen-companion-test-append "mine\n")
    ;; A function that formats what is saved comes after the merge.
    (add-hook 'before-save-hook (lambda () (upcase-region (point-min) (point-max))) nil t)
    (run-at-time 0.05 nil #'qwen-companion-follow-test--release)
    (let ((qwen-companion-follow--save-wait qwen-companion-test-limit))
      (save-buffer))
    (should (equal "ONE\nTWO\nTHREE\nMINE\n" (qwen-companion-test-file-text "a.txt")))
    (should-not (buffer-modified-p))))

(ert-deftest qwen-companion-follow-test-saving-is-refused-without-the-merge ()
  "The CLI's text stays on disk, and the user is told; also with conflicts."
  (qwen-companion-follow-test-visiting "one\n"
    (qwen-companion-follow-test--write-held "a.txt" "theirs\n")
    (erase-buffer)
    (insert "mine\n")
    (let ((qwen-companion-follow--save-wait 0.05))
      (qwen-companion-test-refused "save again" (save-buffer)))
    (run-at-time 0.05 nil #'qwen-companion-follow-test--release)
    (let ((qwen-companion-follow--save-wait qwen-companion-test-limit))
      (qwen-companion-test-refused "conflicts" (save-buffer)))
    (should (equal "theirs\n" (qwen-companion-test-file-text "a.txt")))
    (should smerge-mode)
    (should (buffer-modified-p))
    (goto-char (point-min))
    (smerge-next)
    (smerge-keep-upper)
    (save-buffer)
    (should (equal "mine\n" (qwen-companion-test-file-text "a.txt")))))

(ert-deftest qwen-companion-follow-test-an-expected-write-asks-nothing ()
  "No key asks between acceptance and write, or between write and its event."
  (qwen-companion-follow-test-visiting "one\ntwo\nthree\n"
    (let ((path (expand-file-name "a.txt"))
          (create-lockfiles t))
      (qwen-companion-disk-expect path "ONE\ntwo\nthree\n")
      (qwen-companion-follow-test--write path "ONE\ntwo\nthree\n")
      ;; No event has been handled: nobody knows of the write.
      (qwen-companion-test-append "mine\n")
      ;; Not even saving overwrites it.
      (save-buffer)
      (should (equal "ONE\ntwo\nthree\nmine\n" (qwen-companion-test-file-text "a.txt"))))))

(ert-deftest qwen-companion-follow-test-saved-between-acceptance-and-write ()
  "The CLI overwrites the saved text: the buffer still has it."
  (qwen-companion-follow-test-visiting "one\ntwo\nthree\n"
    (let ((path (expand-file-name "a.txt")))
      (qwen-companion-disk-expect path "ONE\ntwo\nthree\n")
      (qwen-companion-test-append "mine\n")
      (save-buffer)
      (qwen-companion-follow-test--write path "ONE\ntwo\nthree\n")
      (qwen-companion-test-wait-for (qwen-companion-test-written-p))
      (qwen-companion-follow-test--wait)
      (should (equal "ONE\ntwo\nthree\nmine\n" (buffer-string)))
      (should (buffer-modified-p)))))

(ert-deftest qwen-companion-follow-test-an-expected-write-that-does-not-come ()
  "Emacs is as careful as before."
  (qwen-companion-follow-test-with '(("a.txt" "one\n"))
    (setq qwen-companion-follow-writes nil)
    (with-current-buffer (find-file-noselect "a.txt")
      (let ((time (visited-file-modtime))
            (write (qwen-companion-disk-expect (expand-file-name "a.txt") "two\n")))
        (should (equal 0 (visited-file-modtime)))
        (qwen-companion-disk-forget write)
        (should (time-equal-p time (visited-file-modtime)))
        (should-not (memq 'qwen-companion-follow--before-save before-save-hook))))))

(ert-deftest qwen-companion-follow-test-a-key-before-the-event-asks-nothing ()
  "The first key and the first after saving ask nothing; no text is lost."
  (qwen-companion-follow-test-visiting "one\ntwo\nthree\n"
    (let ((create-lockfiles t))
      (goto-char (point-max))
      (dolist (first '("ONE" "Uno" "Un"))
        (qwen-companion-follow-test--write
         "a.txt" (concat first "\n" (with-temp-buffer
                                      (insert-file-contents "a.txt")
                                      (forward-line 1)
                                      (buffer-substring (point) (point-max)))))
        ;; No event has been handled: nobody knows of the write.
        (insert first " mine\n")
        (save-buffer)
        (should (string-prefix-p (concat first "\ntwo\nthree\n") (buffer-string))))
      (should (equal "Un\ntwo\nthree\nONE mine\nUno mine\nUn mine\n"
                     (qwen-companion-test-file-text "a.txt"))))))

(ert-deftest qwen-companion-follow-test-undoing-all-leaves-unmodified ()
  "Undo knows the text that was saved, and no other, from its time."
  (qwen-companion-follow-test-visiting "one\n"
    (insert "x")
    (undo-boundary)
    (should (verify-visited-file-modtime))
    (should-not (equal 0 (visited-file-modtime)))
    (qwen-companion-test-undo)
    (should-not (buffer-modified-p))
    (insert "y")
    (undo-boundary)
    (save-buffer)
    (qwen-companion-test-append "z")
    (qwen-companion-test-undo)
    (should-not (buffer-modified-p))
    (qwen-companion-test-undo)
    (should (buffer-modified-p))))

(ert-deftest qwen-companion-follow-test-unfollowed-buffer-keeps-its-time ()
  (qwen-companion-follow-test-with '(("a.txt" "one\n"))
    (with-current-buffer (find-file-noselect "a.txt")
      (setq-local revert-buffer-function #'ignore)
      (qwen-companion-test-wait-for (qwen-companion-follow-test--link))
      (qwen-companion-follow-test--wait)
      (should-not (equal 0 (visited-file-modtime))))))

(ert-deftest qwen-companion-follow-test-option-off-follows-accepted-proposals ()
  (qwen-companion-follow-test-with '(("a.txt" "one\n"))
    (setq qwen-companion-follow-writes nil)
    (with-current-buffer (find-file-noselect "a.txt")
      (let ((path (expand-file-name "a.txt")))
        (qwen-companion-disk-expect path "two\n")
        (qwen-companion-follow-test--write path "two\n")
        (qwen-companion-test-wait-for (equal "two\n" (buffer-string)))
        (should-not (buffer-modified-p))
        (should-not (qwen-companion-follow-test--link))))))

;;; Unsaved text

(ert-deftest qwen-companion-follow-test-unsaved-text-is-merged ()
  (qwen-companion-follow-test-visiting "one\ntwo\nthree\n"
    (qwen-companion-test-append "mine\n")
    (undo-boundary)
    (qwen-companion-test-said "merged the change on disk into a\\.txt"
      (qwen-companion-follow-test-written "a.txt" "ONE\ntwo\nthree\n"))
    (should (equal "ONE\ntwo\nthree\nmine\n" (buffer-string)))
    (should (buffer-modified-p))
    (should (verify-visited-file-modtime))
    (should (equal "ONE\ntwo\nthree\n" (qwen-companion-test-file-text "a.txt")))
    (qwen-companion-test-undo)
    (should (equal "one\ntwo\nthree\nmine\n" (buffer-string)))))

(ert-deftest qwen-companion-follow-test-the-next-merge-starts-from-the-last ()
  "Otherwise the CLI's first write would conflict with itself."
  (qwen-companion-follow-test-visiting "one\ntwo\nthree\nfour\n"
    (qwen-companion-test-append "mine\n")
    (qwen-companion-follow-test-written "a.txt" "ONE\ntwo\nthree\nfour\n")
    (qwen-companion-follow-test-written "a.txt" "One\ntwo\nthree\nfour\n"
      (should (equal "One\ntwo\nthree\nfour\nmine\n" (buffer-string))))))

(defmacro qwen-companion-follow-test-with-conflict (mine theirs &rest body)
  "Run BODY in the buffer of a file in which MINE, unsaved, meets THEIRS."
  (declare (indent 2) (debug t))
  `(qwen-companion-follow-test-visiting "one\ntwo\nthree\n"
     (erase-buffer)
     (insert ,mine)
     (qwen-companion-test-said "[12] conflicts? between your text in a\\.txt"
       (qwen-companion-follow-test-written "a.txt" ,theirs))
     (dolist (marker '("<<<<<<< yours" "|||||||"))
       (should (string-search marker (buffer-string))))
     (should smerge-mode)
     (should (buffer-modified-p))
     (should (equal ,theirs (qwen-companion-test-file-text "a.txt")))
     ,@body))

(defun qwen-companion-follow-test--save-error (&optional command)
  "Save the current buffer by COMMAND, which must refuse; return why."
  (cadr (should-error (funcall (or command #'save-buffer)) :type 'user-error)))

(ert-deftest qwen-companion-follow-test-conflict-markers-are-not-saved ()
  "No command in any mode saves unresolved markers; undo brings them back."
  (qwen-companion-follow-test-with-conflict "mine\ntwo\nthree\n" "theirs\ntwo\nthree\n"
    (dolist (command (list #'save-buffer (lambda () (save-some-buffers t))))
      (should (string-match-p "1 unresolved conflict .*C-c \\^ n .*C-u C-x C-s"
                              (qwen-companion-follow-test--save-error command))))
    (text-mode)
    (should (qwen-companion-follow-test--save-error))
    (should (equal "theirs\ntwo\nthree\n" (qwen-companion-test-file-text "a.txt")))
    (should (buffer-modified-p))
    (goto-char (point-min))
    (undo-boundary)
    (smerge-keep-upper)
    (save-buffer)
    (should (equal "mine\ntwo\nthree\n" (qwen-companion-test-file-text "a.txt")))
    (qwen-companion-test-undo)
    (should (string-search "<<<<<<< yours" (buffer-string)))
    (should (qwen-companion-follow-test--save-error))))

(ert-deftest qwen-companion-follow-test-conflict-markers-are-saved-on-demand ()
  "Saved once on demand, they are saved like any other text."
  (qwen-companion-follow-test-with-conflict "mine\n" "theirs\n"
    (let ((current-prefix-arg '(4))
          (this-command #'save-some-buffers))
      (should (qwen-companion-follow-test--save-error
               (lambda () (save-some-buffers t))))
      (setq this-command #'save-buffer)
      (save-buffer))
    (should (string-search "<<<<<<< yours" (qwen-companion-test-file-text "a.txt")))
    (should-not (qwen-companion-follow-lighter))
    (insert "more\n")
    (save-buffer)
    (should (string-search "more" (qwen-companion-test-file-text "a.txt")))))

(ert-deftest qwen-companion-follow-test-conflict-markers-stay-guarded ()
  "They are guarded after the CLI's end, with the mode off, and in a renamed file."
  (qwen-companion-follow-test-with-conflict "mine\n" "theirs\n"
    (qwen-companion-test-set-sessions nil)
    (qwen-companion-follow-update)
    (qwen-companion-test-wait-for (not (qwen-companion-follow-test--link)))
    (should (qwen-companion-follow-test--save-error))
    (qwen-companion-follow-disable)
    (should (qwen-companion-follow-test--save-error))
    ;; Another name with another major mode.
    (should (qwen-companion-follow-test--save-error
             (lambda () (write-file (expand-file-name "b.el")))))
    (should-not (file-exists-p "b.el"))
    (erase-buffer)
    (insert "both\n")
    (save-buffer)
    (should (equal "both\n" (qwen-companion-test-file-text "b.el")))))

(ert-deftest qwen-companion-follow-test-conflicts-and-saving-by-itself ()
  "`auto-save-visited-mode' passes over the buffer, and saves the others."
  (qwen-companion-follow-test-with '(("a.txt" "one\n") ("b.txt" "one\n"))
    (let ((auto-save-visited-interval 0.1)
          (other (find-file-noselect "b.txt")))
      (auto-save-visited-mode 1)
      (unwind-protect
          (with-current-buffer (qwen-companion-follow-test--visit "a.txt")
            (erase-buffer)
            (insert "mine\n")
            (qwen-companion-follow-test-written "a.txt" "theirs\n"
              (with-current-buffer other (insert "zero\n"))
              ;; What its idle timer calls.
              (let ((timer auto-save--timer))
                (apply (timer--function timer) (timer--args timer))
                (should (equal "zero\none\n" (qwen-companion-test-file-text "b.txt")))
                (should (equal "theirs\n" (qwen-companion-test-file-text "a.txt")))
                ;; Resolved by hand, it is saved by itself again.
                (erase-buffer)
                (insert "both\n")
                (qwen-companion-test-wait-for (not (qwen-companion-follow-lighter)))
                (apply (timer--function timer) (timer--args timer))
                (should (equal "both\n" (qwen-companion-test-file-text "a.txt"))))))
        (auto-save-visited-mode -1)))))

(ert-deftest qwen-companion-follow-test-the-first-conflict-is-shown ()
  "The mode line counts conflicts, and a refused save goes to the first one."
  (qwen-companion-follow-test-with-conflict "mine\ntwo\nthree mine\n" "theirs\ntwo\nthree theirs\n"
    (should (equal " 2 conflicts" (qwen-companion-follow-lighter)))
    (switch-to-buffer (current-buffer))
    (goto-char (point-max))
    (qwen-companion-follow-test--save-error)
    (qwen-companion-test-wait-for (looking-at "<<<<<<< yours"))
    (smerge-keep-upper)
    (qwen-companion-test-wait-for (equal " 1 conflict" (qwen-companion-follow-lighter)))
    (goto-char (point-min))
    (qwen-companion-follow-test--save-error)
    (qwen-companion-test-wait-for (looking-at "<<<<<<< yours"))
    (smerge-keep-lower)
    (qwen-companion-test-wait-for (not (qwen-companion-follow-lighter)))
    (save-buffer)
    (should (equal "mine\ntwo\nthree theirs\n" (qwen-companion-test-file-text "a.txt")))))

(ert-deftest qwen-companion-follow-test-a-second-write-nests-no-conflicts ()
  "The merge begins with the user's text as it was, and keeps later edits."
  (qwen-companion-follow-test-with-conflict
      "mine\ntwo\nthree\n" "theirs\ntwo\nthree\n"
    (qwen-companion-follow-test-written "a.txt" "Theirs\ntwo\nthree\n"
      (should (equal (concat "<<<<<<< mine\nmine\n||||||| base\none\n=======\n"
                             "Theirs\n>>>>>>> theirs\ntwo\nthree\n")
                     (qwen-companion-follow-test--plain-labels))))
    ;; Typed elsewhere meanwhile.
    (qwen-companion-test-append "four\n")
    (qwen-companion-follow-test-written "a.txt" "THEIRS\ntwo\nthree\n"
      (should (equal (concat "<<<<<<< mine\nmine\n||||||| base\none\n=======\n"
                             "THEIRS\n>>>>>>> theirs\ntwo\nthree\nfour\n")
                     (qwen-companion-follow-test--plain-labels))))
    ;; The CLI takes its change back: no conflict is left.
    (qwen-companion-follow-test-written "a.txt" "one\ntwo\nthree\n"
      (should (equal "mine\ntwo\nthree\nfour\n" (buffer-string)))
      (should-not (qwen-companion-follow-lighter))
      (save-buffer)
      (should (equal "mine\ntwo\nthree\nfour\n" (qwen-companion-test-file-text "a.txt"))))))

(defun qwen-companion-follow-test--plain-labels ()
  "Return the text of the current buffer with labels as of any merge."
  (thread-last (buffer-string)
    (replace-regexp-in-string "^<<<<<<< .*" "<<<<<<< mine")
    (replace-regexp-in-string "^||||||| .*" "||||||| base")
    (replace-regexp-in-string "^>>>>>>> .*" ">>>>>>> theirs")))

(ert-deftest qwen-companion-follow-test-a-conflict-being-resolved-waits ()
  "Text written meanwhile is merged after the user resolves the conflict."
  (qwen-companion-follow-test-with-conflict "mine\ntwo\nthree\n" "theirs\ntwo\nthree\n"
    (qwen-companion-test-go-to "theirs")
    (insert " and mine")
    (let ((text (buffer-string)))
      (qwen-companion-follow-test--write "a.txt" "Theirs\ntwo\nthree\nfour\n")
      (qwen-companion-test-said "a\\.txt follows when its conflicts are resolved"
        (qwen-companion-test-wait-for
         (qwen-companion-follow--link-held (qwen-companion-follow-test--link))))
      (should (equal text (buffer-string)))
      (should (qwen-companion-follow-test--save-error))
      (should (equal "Theirs\ntwo\nthree\nfour\n" (qwen-companion-test-file-text "a.txt")))
      ;; Resolved as it was on disk then: what came since is merged.
      (erase-buffer)
      (insert "theirs\ntwo\nthree\n")
      (qwen-companion-test-wait-for (equal "Theirs\ntwo\nthree\nfour\n" (buffer-string)))
      (should-not (buffer-modified-p)))))

(ert-deftest qwen-companion-follow-test-text-unsaved-before-a-cli-came ()
  "The base is still on disk, unless the file had changed by then."
  (dolist (changed '(nil t))
    (qwen-companion-follow-test-with '(("a.txt" "one\ntwo\nthree\n"))
      (qwen-companion-test-set-sessions nil)
      (with-current-buffer (find-file-noselect "a.txt")
        (qwen-companion-test-append "mine\n")
        (when changed
          (qwen-companion-follow-test--write "a.txt" "one\nTWO\nthree\n"))
        (qwen-companion-test-set-sessions '((:id "1")))
        (let ((said (qwen-companion-test-messages
                      (qwen-companion-follow-update)
                      (qwen-companion-test-wait-for
                       (and (qwen-companion-follow-test--link)
                            (or (not changed) (qwen-companion-follow-lighter))))
                      (unless changed
                        (qwen-companion-follow-test-written
                            "a.txt" "ONE\ntwo\nthree\n")))))
          (if (not changed)
              (should (equal "ONE\ntwo\nthree\nmine\n" (buffer-string)))
            (should (string-match-p "M-x ediff-current-file" said))
            (should (string-match-p "differs" (qwen-companion-follow-lighter)))
            (should (equal "one\ntwo\nthree\nmine\n" (buffer-string)))
            (should-not (verify-visited-file-modtime))
            (revert-buffer t t)
            (should-not (qwen-companion-follow-lighter))))))))

(ert-deftest qwen-companion-follow-test-reverting-meanwhile ()
  "A merge that was under way is not applied to the reverted text."
  (qwen-companion-follow-test-visiting "one\n"
    (insert "mine\n")
    (qwen-companion-follow-test--write-held "a.txt" "two\n")
    (revert-buffer t t)
    (qwen-companion-follow-test--release)
    (should (equal "two\n" (buffer-string)))
    (should-not (buffer-modified-p))))

(ert-deftest qwen-companion-follow-test-a-merge-that-fails-touches-nothing ()
  "It is tried again with the next process; without unsaved text Emacs does it alone."
  (dolist (again '(process revert))
    (qwen-companion-follow-test-visiting "one\n"
      (insert "mine\n")
      (cl-letf (((symbol-function 'qwen-companion-merge-texts)
                 (lambda (_base _mine _theirs _labels callback) (run-at-time 0 nil callback nil))))
        (qwen-companion-follow-test--write "a.txt" "one\ntwo\n")
        (qwen-companion-test-wait-for (qwen-companion-follow-lighter))
        (should (equal "mine\none\n" (buffer-string)))
        (should-not (verify-visited-file-modtime))
        (when (eq again 'revert)
          (revert-buffer t t)
          (qwen-companion-follow-test-written "a.txt" "three\n"
            (should (equal "three\n" (buffer-string))))))
      (when (eq again 'process)
        (run-hooks 'qwen-companion-backend-connected-hook)
        (qwen-companion-follow-test--wait)
        (should (equal "mine\none\ntwo\n" (buffer-string)))
        (should (verify-visited-file-modtime))
        (should-not (qwen-companion-follow-lighter))))))

;;; Slow writers, and times that do not change

(ert-deftest qwen-companion-follow-test-a-slow-writer-is-waited-for ()
  "A part, a pause and the rest come as one change, when the file is closed."
  (skip-unless (featurep 'inotify))
  (qwen-companion-follow-test-visiting "one\ntwo\nthree\nfour\nfive\n"
    (qwen-companion-test-go-to "fo")
    (let* ((overlay (make-overlay (line-beginning-position) (line-end-position)))
           (text (buffer-string))
           (process-connection-type nil)
           (qwen-companion-disk-idle-writer qwen-companion-test-limit)
           (writer (start-process "writer" nil "sh" "-c"
                                  (concat "exec >a.txt; while read -r line;"
                                          "do printf '%s\\n' \"$line\"; done")))
           seen)
      (set-process-query-on-exit-flag writer nil)
      (process-send-string writer "ONE\n")
      (qwen-companion-test-wait-for (equal "ONE\n" (qwen-companion-test-file-text "a.txt")))
      ;; Longer than any other pause of ours.
      (let ((end (+ (float-time) 0.8)))
        (while (< (float-time) end)
          (read-event nil nil 0.02)
          (push (buffer-string) seen)))
      (should (equal (list text) (delete-dups seen)))
      (process-send-string writer "two\nthree\nfour\nfive\n")
      (process-send-eof writer)
      (qwen-companion-test-wait-for (equal "ONE\ntwo\nthree\nfour\nfive\n" (buffer-string)))
      (should (looking-back "fo" (line-beginning-position)))
      (should (equal "four" (buffer-substring (overlay-start overlay) (overlay-end overlay))))
      (qwen-companion-test-undo)
      (should (equal text (buffer-string))))))

(ert-deftest qwen-companion-follow-test-a-writer-that-rests-is-followed ()
  "A writer that keeps its file open, as of a log, is followed between writes."
  (skip-unless (featurep 'inotify))
  (qwen-companion-follow-test-visiting "one\n"
    (let* ((process-connection-type nil)
           (writer (start-process "writer" nil "sh" "-c" "exec >>a.txt; echo two; read x")))
      (set-process-query-on-exit-flag writer nil)
      (qwen-companion-test-wait-for (equal "one\ntwo\n" (buffer-string)))
      (should (process-live-p writer))
      (delete-process writer))))

(defun qwen-companion-follow-test--run (script)
  "Run SCRIPT with sh, and wait until the current buffer has followed.
Return the texts that it had meanwhile, newest first."
  (let* ((process-connection-type nil)
         (writer (start-process "writer" nil "sh" "-c" script))
         (texts (list (buffer-string))))
    (set-process-query-on-exit-flag writer nil)
    (qwen-companion-test-wait-for
     (progn
       (unless (equal (buffer-string) (car texts))
         (push (buffer-string) texts))
       (and (not (process-live-p writer)) (not (qwen-companion-follow-test--behind-p)))))
    texts))

(defun qwen-companion-follow-test--lines (name)
  "Return a text of 120 lines, each with NAME and its number."
  (mapconcat (lambda (number) (format "%s %d\n" name number)) (number-sequence 1 120) ""))

(defconst qwen-companion-follow-test--slow-writers
  '(": > a.txt; sleep 0.7; cat new.txt > a.txt"
    ": > a.txt; for piece in piece-*; do cat $piece >> a.txt; sleep 0.2; done"
    "(sleep 2; cat new.txt) > a.txt")
  "Scripts that bring the text of new.txt, or its pieces, into a.txt by and by.")

(ert-deftest qwen-companion-follow-test-a-file-cut-off-is-waited-for ()
  "A file that is emptied and filled later is one change, and nothing moves."
  (skip-unless (featurep 'inotify))
  (dolist (script qwen-companion-follow-test--slow-writers)
    (let* ((old (qwen-companion-follow-test--lines "old"))
           (new (string-replace "old 7\n" "new 7\nanother\n" old)))
      (qwen-companion-follow-test-with `(("a.txt" ,old) ("new.txt" ,new))
        (call-process "split" nil nil nil "-n" "10" "new.txt" "piece-")
        (with-current-buffer (qwen-companion-follow-test--visit "a.txt")
          (qwen-companion-test-go-to "old 100")
          (let ((qwen-companion-disk-idle-writer 1.5))
            (should (equal (list new old) (qwen-companion-follow-test--run script))))
          (should (looking-back "^old 100" (line-beginning-position)))
          (qwen-companion-test-undo)
          (should (equal old (buffer-string))))))))

(ert-deftest qwen-companion-follow-test-a-file-cut-off-is-merged-once ()
  "With unsaved text too: a file that is filled later makes no conflict."
  (skip-unless (featurep 'inotify))
  (let* ((old (qwen-companion-follow-test--lines "old"))
         (new (string-replace "old 7\n" "new 7\n" old)))
    (qwen-companion-follow-test-with `(("a.txt" ,old) ("new.txt" ,new))
      (with-current-buffer (qwen-companion-follow-test--visit "a.txt")
        (qwen-companion-test-append "mine\n")
        (let ((qwen-companion-disk-idle-writer 1.5))
          (should (equal (list (concat new "mine\n") (concat old "mine\n"))
                         (qwen-companion-follow-test--run
                          (car qwen-companion-follow-test--slow-writers)))))
        (should-not smerge-mode)))))

(ert-deftest qwen-companion-follow-test-buffers-that-do-not-follow-say-so ()
  "Unibyte buffers and those of Hexl mode show no change of their files."
  (pcase-dolist (`(,show . ,reason)
                 '((ignore . "it shows bytes, not characters")
                   (hexl-mode . "hexl-mode reverts files in its own way")))
    (qwen-companion-follow-test-with '(("a.txt" "one\n") ("b.txt" "one\n"))
      (qwen-companion-follow-test--visit "b.txt")
      (with-current-buffer (find-file-noselect "a.txt" nil (eq show 'ignore))
        (qwen-companion-test-wait-for (qwen-companion-follow-test--link))
        (funcall show)
        (let* ((text (buffer-string))
               (messages (qwen-companion-test-messages
                           (qwen-companion-follow-test--write "a.txt" "two\n")
                           (qwen-companion-test-wait-for (qwen-companion-follow-lighter)))))
          (should (string-match-p (concat "a.txt does not follow: " reason) messages))
          (should (equal text (buffer-string))))))))

(ert-deftest qwen-companion-follow-test-the-same-size-and-time ()
  "After `touch -r' or `rsync -t' the next save still overwrites no other text."
  (dolist (command '("printf 'two\\n' >a.txt; touch -r stamp a.txt"
                     "printf 'two\\n' >new; touch -r stamp new; mv new a.txt"))
    (qwen-companion-follow-test-with '(("a.txt" "one\n") ("stamp" ""))
      (set-file-times "a.txt" (time-subtract nil 100))
      (set-file-times "stamp" (file-attribute-modification-time (file-attributes "a.txt")))
      (with-current-buffer (qwen-companion-follow-test--visit "a.txt")
        (qwen-companion-follow-test--wait)
        (call-process "sh" nil nil nil "-c" command)
        (qwen-companion-test-wait-for (equal "two\n" (buffer-string)))
        (should-not (buffer-modified-p))
        ;; And before it was noticed.
        (set-file-times "stamp" (file-attribute-modification-time (file-attributes "a.txt")))
        (qwen-companion-test-append "mine\n")
        (qwen-companion-follow-test--wait)
        (call-process "sh" nil nil nil "-c" (string-replace "two" "TWO" command))
        (should (string-match-p "conflicts" (qwen-companion-follow-test--save-error)))
        (should (equal "TWO\n" (qwen-companion-test-file-text "a.txt")))))))

;;; Deleted and renamed

(ert-deftest qwen-companion-follow-test-deleted-and-created-again ()
  (qwen-companion-follow-test-with '(("d/a.txt" "one\n"))
    (with-current-buffer (qwen-companion-follow-test--visit "d/a.txt")
      (should-not (qwen-companion-follow-lighter))
      (delete-directory (expand-file-name "d" directory) t)
      (qwen-companion-test-wait-for (qwen-companion-follow-lighter))
      (should (equal " deleted" (qwen-companion-follow-lighter)))
      (should (equal "one\n" (buffer-string)))
      (qwen-companion-follow-test--write buffer-file-name "two\n")
      (qwen-companion-test-wait-for (equal "two\n" (buffer-string)))
      (should-not (qwen-companion-follow-lighter))
      (delete-file buffer-file-name)
      (qwen-companion-test-wait-for (qwen-companion-follow-lighter))
      (set-buffer-modified-p t)
      (save-buffer)
      (should-not (qwen-companion-follow-lighter)))))

(defun qwen-companion-follow-test--vanish (operation &rest arguments)
  "Delete the file of ARGUMENTS, then do OPERATION: a handler of file names."
  (let ((inhibit-file-name-handlers '(qwen-companion-follow-test--vanish))
        (inhibit-file-name-operation operation))
    (delete-file (car arguments))
    (apply operation arguments)))
(put 'qwen-companion-follow-test--vanish 'operations '(file-attributes))

(ert-deftest qwen-companion-follow-test-deleted-between-two-looks ()
  "git deletes a file before it writes it; that holds up no buffer."
  (qwen-companion-follow-test-with '(("a.txt" "one\n") ("b.txt" "one\n"))
    (let ((a (qwen-companion-follow-test--visit "a.txt"))
          (b (qwen-companion-follow-test--visit "b.txt")))
      (let ((file-name-handler-alist
             (cons (cons (concat "\\`" (regexp-quote (expand-file-name "a.txt")) "\\'")
                         #'qwen-companion-follow-test--vanish)
                   file-name-handler-alist)))
        (qwen-companion-follow-test--write "a.txt" "two\n")
        (qwen-companion-test-wait-for (not (file-exists-p "a.txt"))))
      (dolist (file '("a.txt" "b.txt"))
        (qwen-companion-follow-test--write file "two\n"))
      (dolist (buffer (list a b))
        (with-current-buffer buffer
          (qwen-companion-test-wait-for (equal "two\n" (buffer-string))))))))

(ert-deftest qwen-companion-follow-test-renamed ()
  (qwen-companion-follow-test-visiting "one\n"
    (rename-file "a.txt" "b.txt")
    (qwen-companion-test-wait-for (qwen-companion-follow-lighter))
    (should (equal " renamed" (qwen-companion-follow-lighter)))
    (should (string-suffix-p "b.txt" (get-text-property
                                      0 'help-echo (qwen-companion-follow-lighter))))
    (set-visited-file-name "b.txt" t t)
    (should-not (qwen-companion-follow-lighter))
    (qwen-companion-test-wait-for (qwen-companion-follow-test--link))
    (qwen-companion-follow-test-written "b.txt" "two\n"
      (should (equal "two\n" (buffer-string))))))

(ert-deftest qwen-companion-follow-test-the-new-name-is-offered ()
  "A file moved by the shell is found, also in a directory without a watch."
  (dolist (command '("mv a.txt b.txt" "mkdir d && mv a.txt d/b.txt"))
    (qwen-companion-follow-test-visiting "one\n"
      (goto-char (point-max))
      (qwen-companion-test-said "b\\.txt.*M-x qwen-companion-follow-rename"
        (call-process "sh" nil nil nil "-c" command)
        (qwen-companion-test-wait-for (equal " renamed" (qwen-companion-follow-lighter))))
      (insert "mine\n")
      (qwen-companion-follow-rename)
      (should (string-suffix-p "b.txt" buffer-file-name))
      (should (equal "one\nmine\n" (buffer-string)))
      (save-buffer)
      (should (equal "one\nmine\n" (qwen-companion-test-file-text buffer-file-name)))
      (should-not (file-exists-p "a.txt"))
      (should-error (qwen-companion-follow-rename) :type 'user-error))))

(ert-deftest qwen-companion-follow-test-a-file-that-is-created ()
  "The buffer of a file that was not there gets its text."
  (qwen-companion-follow-test-with nil
    (with-current-buffer (qwen-companion-follow-test--visit "new/a.txt")
      (should-not (qwen-companion-follow-lighter))
      (qwen-companion-follow-test--write buffer-file-name "one\n")
      (qwen-companion-test-wait-for (equal "one\n" (buffer-string)))
      (should-not (buffer-modified-p)))))

(ert-deftest qwen-companion-follow-test-however-it-is-written ()
  (pcase-dolist (`(,text . ,script)
                 '(;; A file that stays cut off is followed after a while.
                   ("" . ": > a.txt")
                   ;; Another one is renamed to it, twice.
                   ("two\n" . "echo two > a.tmp; mv a.tmp a.txt")
                   ("three\n" . "echo two > a.tmp; mv a.tmp a.txt; sleep 0.1; echo three > a.tmp; mv a.tmp a.txt")
                   ;; No event tells of a write to a file that is mapped into memory.
                   ("TWO\n" . "python3 -c \"import mmap
with open('a.txt', 'r+b') as file, mmap.mmap(file.fileno(), 0) as memory:
    memory[:3] = b'TWO'\"")))
    (qwen-companion-follow-test-visiting "one\n"
      (qwen-companion-follow-test--run script)
      (qwen-companion-test-wait-for (equal text (buffer-string)))
      (should-not (buffer-modified-p))
      (should (eq (current-buffer) (find-file-noselect "a.txt"))))))

;;; The odd ones

(ert-deftest qwen-companion-follow-test-symlinks ()
  "The text, and another file in the link's place."
  (qwen-companion-follow-test-with '(("real/a.txt" "one\n") ("link/b.txt" ""))
    (make-symbolic-link "../real/a.txt" "link/a.txt")
    (with-current-buffer (qwen-companion-follow-test--visit "link/a.txt")
      (let ((default-directory (expand-file-name "../real")))
        (qwen-companion-follow-test--write "a.txt" "two\n"))
      (qwen-companion-test-wait-for (equal "two\n" (buffer-string)))
      (should-not (buffer-modified-p))
      (qwen-companion-follow-test--write "b.txt" "three\n")
      (rename-file "b.txt" "a.txt" t)
      (qwen-companion-test-wait-for (equal "three\n" (buffer-string))))))

(ert-deftest qwen-companion-follow-test-two-names ()
  "Two buffers on one file, by a hard link in another directory or by a symlink."
  (dolist (hard '(t nil))
    (qwen-companion-follow-test-with '(("one/a.txt" "one\n"))
      (make-directory "two")
      (if hard
          (add-name-to-file "one/a.txt" "two/b.txt")
        (make-symbolic-link "../one/a.txt" "two/b.txt"))
      (let* ((find-file-existing-other-name nil)
             (a (qwen-companion-follow-test--visit "one/a.txt"))
             (b (qwen-companion-follow-test--visit "two/b.txt")))
        (should-not (eq a b))
        (qwen-companion-follow-test--write "one/a.txt" "two\n")
        (dolist (buffer (list a b))
          (with-current-buffer buffer
            (qwen-companion-test-wait-for (equal "two\n" (buffer-string)))
            (should-not (buffer-modified-p))))
        ;; A file deleted leaves its number to another, which is no name of it.
        (when hard
          (delete-file "two/b.txt")
          (should (equal (list a) (qwen-companion-disk-buffers "one/a.txt"))))))))

(ert-deftest qwen-companion-follow-test-narrowed-and-indirect ()
  (qwen-companion-follow-test-visiting "one\ntwo\nthree\n"
    (let ((indirect (make-indirect-buffer (current-buffer) "indirect"))
          (clone (make-indirect-buffer (current-buffer) "clone" t)))
      (narrow-to-region 5 9)
      (qwen-companion-follow-test-written "a.txt" "one\nmore\ntwo\nthree\n"
        (should (equal "two\n" (buffer-string)))
        (should (equal "one\nmore\ntwo\nthree\n" (qwen-companion-test-buffer-text indirect))))
      ;; Text that is typed there is the file's, and has a base as well.
      (qwen-companion-test-append "mine\n" indirect)
      (kill-buffer clone)
      (qwen-companion-follow-test-written "a.txt" "ONE\nmore\ntwo\nthree\n"
        (should (equal "ONE\nmore\ntwo\nthree\nmine\n" (qwen-companion-test-buffer-text indirect))))
      (kill-buffer indirect))))

(defconst qwen-companion-follow-test--encodings
  '((iso-latin-1-unix "caf\u00e9\n" "caf\u00e9 cr\u00e8me\n")
    (utf-16le-with-signature-unix "caf\u00e9\n" "caf\u00e9 \u20ac\n")
    (utf-8-with-signature-unix "caf\u00e9\n" "caf\u00e9 \u20ac\n")
    (utf-8-dos "one\ntwo\n" "one\nTWO\nthree\n")
    ;; Both kinds of line ends: all of the text is as it is in the file.
    (utf-8-unix "1\r\n2\r\n3\r\n4\r\nfive\n" "1\r\n2\r\n3\r\n4\r\nFIVE\n")
    (utf-8-unix "one\ntwo" "one\nTWO")
    (utf-8-unix "" "caf\u00e9 \U0001F600")
    (utf-8-unix "caf\u00e9\n" ""))
  "List of (CODING-SYSTEM TEXT WRITTEN); a CLI writes WRITTEN in the same coding.")

(ert-deftest qwen-companion-follow-test-encodings ()
  "The text is right, and saving it writes the same bytes."
  (pcase-dolist (`(,coding ,old ,new) qwen-companion-follow-test--encodings)
    (ert-info ((format "%s %S" coding new))
      (qwen-companion-follow-test-with nil
        (qwen-companion-follow-test--write "a.txt" old coding)
        (with-current-buffer (qwen-companion-follow-test--visit "a.txt")
          (should (equal old (buffer-string)))
          (qwen-companion-follow-test--write "a.txt" new coding)
          (qwen-companion-follow-test--wait)
          (should (equal new (buffer-string)))
          (let ((bytes (qwen-companion-disk-digest "a.txt"))
                (require-final-newline nil))
            (set-buffer-modified-p t)
            (save-buffer)
            (should (equal bytes (qwen-companion-disk-digest "a.txt")))))))))

(ert-deftest qwen-companion-follow-test-another-encoding-than-before ()
  "Line ends and a byte order mark that a CLI brings or drops are kept so."
  (qwen-companion-follow-test-with nil
    (qwen-companion-follow-test--write "a.txt" "caf\u00e9\nb\n" 'utf-8-dos)
    (with-current-buffer (qwen-companion-follow-test--visit "a.txt")
      (dolist (coding '(utf-8-unix utf-8-with-signature-unix iso-latin-1-unix
                                   utf-8-with-signature-dos))
        (qwen-companion-follow-test--write "a.txt" "caf\u00e9\nb\n" coding)
        (qwen-companion-follow-test--wait)
        (should (equal "caf\u00e9\nb\n" (buffer-string)))
        (should-not (buffer-modified-p))
        (should (coding-system-equal coding buffer-file-coding-system))))))

(ert-deftest qwen-companion-follow-test-line-ends-that-become-mixed ()
  "The buffer is as if the file were visited anew, and saves the same bytes."
  (qwen-companion-follow-test-visiting "1\r\n2\r\n3\r\n4\r\n"
    (should (equal "1\n2\n3\n4\n" (buffer-string)))
    (qwen-companion-follow-test-written "a.txt" "1\r\n2\r\n3\r\n4\r\nfive\n"
      (should (equal "1\r\n2\r\n3\r\n4\r\nfive\n" (buffer-string)))
      (set-buffer-modified-p t)
      (save-buffer)
      (should (equal (buffer-string) (qwen-companion-test-file-text "a.txt"))))
    (qwen-companion-follow-test-written "a.txt" "1\r\n2\r\n"
      (should (equal "1\n2\n" (buffer-string))))))

(ert-deftest qwen-companion-follow-test-another-encoding-is-followed-and-undone ()
  "Text written in another encoding is read right; undo restores the old one."
  (dolist (change '((iso-latin-1-unix utf-8-unix) (utf-8-unix utf-8-dos)
                    (iso-latin-1-dos utf-16le-with-signature-unix)))
    (qwen-companion-follow-test-with nil
      (qwen-companion-follow-test--write "a.txt" "caf\u00e9\none\n" (car change))
      (with-current-buffer (qwen-companion-follow-test--visit "a.txt")
        (let ((before (qwen-companion-test-file-bytes "a.txt"))
              after)
          (qwen-companion-follow-test--write "a.txt" "caf\u00e9\ntwo\n" (cadr change))
          (setq after (qwen-companion-test-file-bytes "a.txt"))
          (qwen-companion-follow-test--wait)
          (should (equal "caf\u00e9\ntwo\n" (buffer-string)))
          (should-not (buffer-modified-p))
          (qwen-companion-test-undo)
          (should (equal "caf\u00e9\none\n" (buffer-string)))
          (save-buffer)
          (should (equal before (qwen-companion-test-file-bytes "a.txt")))
          ;; The undoing itself.
          (qwen-companion-test-undo)
          (save-buffer)
          (should (equal after (qwen-companion-test-file-bytes "a.txt"))))))))

(ert-deftest qwen-companion-follow-test-a-text-that-became-ascii-keeps-its-encoding ()
  (qwen-companion-follow-test-with nil
    (qwen-companion-follow-test--write "a.txt" "caf\u00e9\n" 'iso-latin-1-unix)
    (with-current-buffer (qwen-companion-follow-test--visit "a.txt")
      (qwen-companion-follow-test--write "a.txt" "coffee\n" 'iso-latin-1-unix)
      (qwen-companion-follow-test--wait)
      (insert "caf\u00e9 ")
      (save-buffer)
      (should (equal "caf\xe9 coffee\n" (qwen-companion-test-file-bytes "a.txt")))
      (buffer-disable-undo)
      (qwen-companion-follow-test--write "a.txt" "" 'utf-8-unix)
      (qwen-companion-follow-test--wait)
      (should (eq 'iso-latin-1-unix buffer-file-coding-system))
      (qwen-companion-follow-test--write "a.txt" "\u017eivot\n" 'utf-8-unix)
      (qwen-companion-follow-test--wait)
      (should (eq 'utf-8-unix buffer-file-coding-system))
      (should (equal "\u017eivot\n" (buffer-string))))))

(ert-deftest qwen-companion-follow-test-bytes-that-are-no-text-are-followed ()
  "For Emacs, quotation marks in a Windows encoding are such bytes."
  (qwen-companion-follow-test-with nil
    (qwen-companion-follow-test--write "a.txt" "\u201ccaf\u00e9\u201d\n" 'windows-1252-unix)
    (with-current-buffer (qwen-companion-follow-test--visit "a.txt")
      (qwen-companion-follow-test--write "a.txt" "\u201cth\u00e9\u201d\n" 'windows-1252-unix)
      (qwen-companion-follow-test--wait)
      (should-not (buffer-modified-p))
      (qwen-companion-test-append "x\n")
      (save-buffer)
      (should (equal "\x93th\xe9\x94\nx\n" (qwen-companion-test-file-bytes "a.txt"))))))

(ert-deftest qwen-companion-follow-test-an-encoding-the-user-chose ()
  (qwen-companion-follow-test-with nil
    (qwen-companion-follow-test--write "a.txt" "caf\u00e9\n" 'utf-8-unix)
    (let ((coding-system-for-read 'iso-latin-1-unix))
      (find-file-noselect "a.txt"))
    (with-current-buffer (qwen-companion-follow-test--visit "a.txt")
      (qwen-companion-follow-test-written "a.txt" "\u00e9\n"
        (should (equal "\u00c3\u00a9\n" (buffer-string)))))))

(ert-deftest qwen-companion-follow-test-model-written-text-is-only-text ()
  "No local variable, no mode, no format of it takes effect."
  (qwen-companion-follow-test-visiting "one\n"
    (let ((enable-local-variables :all)
          (enable-local-eval t)
          (text "Content-Type: text/enriched\nText-Width: 70\n\n<bold>x</bold>\n\
Local Variables:\nmode: emacs-lisp\nfill-column: 33\neval: (setq fill-column 44)\nEnd:\n"))
      (qwen-companion-follow-test-written "a.txt" text
        (should (equal text (buffer-string)))
        (should (eq 'text-mode major-mode))
        (should-not buffer-file-format)
        (should-not (local-variable-p 'fill-column))))))

(ert-deftest qwen-companion-follow-test-left-to-the-user ()
  "Files that are not simply the text of their buffer are marked only."
  (pcase-dolist (`(,name . ,prepare)
                 `(("a.txt.gz" . ignore)
                   ("a.txt" . ,(lambda () (setq-local revert-buffer-function #'ignore)))
                   ("a.txt" . ,(lambda () (set-buffer-multibyte nil)))
                   ("a.txt" . ,(lambda () (setq buffer-file-format '(text/enriched))))
                   ("a.txt" . ,(lambda () (setq-local qwen-companion-diff-size-limit 5)))))
    (ert-info ((format "%s %S" name prepare))
      (qwen-companion-follow-test-with nil
        (with-temp-file name (insert "one\n"))
        (with-current-buffer (qwen-companion-follow-test--visit name)
          (funcall prepare)
          (with-temp-file buffer-file-name (insert "other\n"))
          (qwen-companion-follow-test--touch buffer-file-name)
          (qwen-companion-test-wait-for (qwen-companion-follow-lighter))
          (should (string-match-p "differs" (qwen-companion-follow-lighter)))
          (should (equal "one\n" (buffer-string)))
          (should-not (verify-visited-file-modtime)))))))

(ert-deftest qwen-companion-follow-test-functions-that-write-the-file ()
  "A buffer with `write-file-functions' follows, and saving calls them."
  (qwen-companion-follow-test-visiting "one\n"
    (let (written)
      (add-hook 'write-file-functions
                (lambda () (push (buffer-string) written) nil) nil t)
      (qwen-companion-follow-test-written "a.txt" "two\n"
        (should-not written)
        (qwen-companion-test-append "mine\n")
        (save-buffer)
        (should (equal '("two\nmine\n") written))))))

(ert-deftest qwen-companion-follow-test-so-long ()
  (qwen-companion-follow-test-with
      (list (list "a.js" (make-string 20000 ?x)))
    (let ((global-so-long-mode t))
      (with-current-buffer (qwen-companion-follow-test--visit "a.js")
        (so-long)
        (qwen-companion-follow-test-written "a.js" (concat (make-string 20000 ?x) "y\n")
          (should (= 20002 (buffer-size)))
          (should (eq 'so-long-mode major-mode))
          (qwen-companion-test-undo)
          (should (= 20000 (buffer-size))))))))

(ert-deftest qwen-companion-follow-test-auto-save-goes-on ()
  "Typed text is auto-saved, even if a merge made the buffer much shorter."
  (qwen-companion-follow-test-with
      (list (list "a.txt" (make-string 20000 ?x)))
    (with-current-buffer (qwen-companion-follow-test--visit "a.txt")
      (auto-save-mode 1)
      (insert "y")
      (do-auto-save t t)
      (save-buffer)
      (qwen-companion-follow-test-written "a.txt" "short\n"
        (should-not (file-exists-p buffer-auto-save-file-name))
        (qwen-companion-test-append "mine\n")
        (do-auto-save t t)
        (should (equal "short\nmine\n"
                       (qwen-companion-test-file-text buffer-auto-save-file-name)))))))

(ert-deftest qwen-companion-follow-test-revert-without-query ()
  "With it, reverting asks nothing and cancels a merge that is under way."
  (qwen-companion-follow-test-with '(("a.txt" "one\n"))
    (let ((revert-without-query '(".")))
      (with-current-buffer (qwen-companion-follow-test--visit "a.txt")
        (qwen-companion-follow-test--write-held "a.txt" "two\n")
        (revert-buffer)
        (should (equal "two\n" (buffer-string)))
        (qwen-companion-follow-test--release)
        (should (equal "two\n" (buffer-string)))
        (should-not (buffer-modified-p))))))

;;; Any order

(defun qwen-companion-follow-test--history ()
  "Return all texts that undoing in the current buffer brings back."
  (let ((buffer (generate-new-buffer " *history*"))
        (undo (copy-tree buffer-undo-list))
        (text (qwen-companion-buffers-text))
        texts)
    (with-current-buffer buffer
      (buffer-disable-undo)
      (insert text)
      (push text texts)
      (while undo
        (setq undo (primitive-undo
                    1 (cl-loop for entry in undo
                               unless (eq t (car-safe entry)) collect entry)))
        (push (buffer-string) texts)))
    (kill-buffer buffer)
    texts))

(defun qwen-companion-follow-test--nested-p ()
  "Return non-nil when a conflict begins inside another one."
  (save-excursion
    (goto-char (point-min))
    (let (inside nested)
      (while (re-search-forward "^\\(<<<<<<<\\|>>>>>>>\\) " nil t)
        (let ((begins (equal "<<<<<<<" (match-string 1))))
          (setq nested (or nested (and inside begins)) inside begins)))
      nested)))

(defconst qwen-companion-follow-test--steps
  '(type type type save revert write write expect undo resolve wait wait)
  "Steps to take in random order; repeated ones are taken more often.")

(defun qwen-companion-follow-test--random-steps (count)
  "Do COUNT random steps in the current buffer, and check all texts at the end.
Each word that was typed and not reverted by the user must be in the
buffer, in what undoing brings back or on disk; each word that a CLI
wrote must be in the buffer, in the history or on disk, unless the user
reverted, or a CLI itself wrote without it.  No marker of a conflict is
ever on disk, and none in another conflict."
  (let ((path buffer-file-name)
        (lines '("one" "two" "three" "four" "five" "six" "seven" "eight"))
        typed written done)
    (cl-flet ((word () (format "w%d" (length done)))
              (disk () (qwen-companion-test-file-text path)))
      (dotimes (_ count)
        (let ((step (seq-random-elt qwen-companion-follow-test--steps)))
          (push step done)
          (pcase step
            ('type
             (goto-char (point-min))
             (forward-line (random (length lines)))
             (undo-boundary)
             (insert (format "%s mine\n" (word)))
             (undo-boundary)
             (push (format "%s mine" (word)) typed))
            ('save
             (when (buffer-modified-p)
               (condition-case nil
                   (save-buffer)
                 ;; Refused, or the question was answered with no.
                 (error nil))))
            ('revert (revert-buffer t t) (setq buffer-undo-list nil typed nil written nil))
            ((or 'write 'expect)
             (let* ((text (disk))
                    (all (split-string text "\n"))
                    (at (random (length all)))
                    (new (string-join
                          (append (seq-take all at)
                                  (list (format "%s theirs" (word)))
                                  (seq-drop all at))
                          "\n")))
               (when (eq step 'expect)
                 (qwen-companion-disk-expect path new))
               (qwen-companion-follow-test--write path new)
               (push (format "%s theirs" (word)) written)))
            ('undo
             (let (last-command this-command)
               (undo-boundary)
               (ignore-errors (undo))
               (undo-boundary)))
            ('resolve
             (goto-char (point-min))
             (undo-boundary)
             (while (re-search-forward smerge-begin-re nil t)
               (goto-char (match-beginning 0))
               (if (condition-case nil
                       (smerge-match-conflict)
                     ;; Undoing left a part of the markers.
                     (error nil))
                   (funcall (seq-random-elt '(smerge-keep-upper smerge-keep-lower
                                              smerge-keep-base)))
                 (delete-region (line-beginning-position) (line-beginning-position 2))))
             (undo-boundary))
            ('wait (read-event nil nil 0.08))))
        (should-not (string-match-p qwen-companion-conflicts--marker (disk)))
        (should-not (qwen-companion-follow-test--nested-p)))
      (qwen-companion-follow-test--wait)
      (let ((texts (cons (disk) (qwen-companion-follow-test--history))))
        (dolist (what (append typed written))
          (ert-info ((format "%S after %S" what (reverse done)))
            (should (cl-some (lambda (text) (string-search what text)) texts))))))))

(ert-deftest qwen-companion-follow-test-version-control-locks-nothing ()
  "A `git commit' of the agent at that moment would fail."
  (qwen-companion-test-with-files '(("a.txt" . "one\n"))
    (let ((git (lambda (&rest arguments)
                 (should (eql 0 (apply #'call-process "git" nil nil nil
                                       "-c" "user.name=Test" "-c" "user.email=test@localhost"
                                       arguments))))))
      (funcall git "init" "--quiet")
      (funcall git "add" ".")
      (funcall git "commit" "--quiet" "-m" "Start"))
    (let ((vc-handled-backends '(Git))
          (index (lambda () (file-attribute-inode-number (file-attributes ".git/index")))))
      (with-current-buffer (find-file-noselect "a.txt")
        (let ((before (funcall index)))
          (setq vc-mode nil)
          ;; `git status' would write its index anew to note that time.
          (set-file-times "a.txt" (time-subtract nil 100))
          (let ((qwen-companion-follow--vc-buffers (list (current-buffer))))
            (qwen-companion-follow--refresh-vc))
          (should (string-prefix-p " Git-" vc-mode))
          (should (equal before (funcall index))))
        (kill-buffer)))))

(ert-deftest qwen-companion-follow-test-nothing-is-lost-in-any-order ()
  "Typing, saving, reverting, undoing, and a CLI that writes meanwhile."
  (dotimes (number 20)
    (let ((seed (format "order %d" number)))
      (ert-info (seed)
        (qwen-companion-follow-test-with
            '(("a.txt" "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n"))
          (random seed)
          (cl-letf (((symbol-function 'ask-user-about-supersession-threat) #'ignore)
                    ;; Save over what is on disk?
                    ((symbol-function 'yes-or-no-p) #'ignore))
            (with-current-buffer (qwen-companion-follow-test--visit "a.txt")
              (qwen-companion-follow-test--random-steps 25))))))))

(provide 'qwen-companion-follow-test)
;;; qwen-companion-follow-test.el ends here
