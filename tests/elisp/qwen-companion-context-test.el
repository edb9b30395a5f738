;;; qwen-companion-context-test.el --- Tests of what is reported  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(defvar auth-sources)

(require 'dired)
(require 'org)
(require 'org-src)
(require 'rect)
(require 'qwen-companion-test-helper)

(defun qwen-companion-context-test--look-at (file)
  "Visit FILE in the selected window as a user does; return its buffer."
  (switch-to-buffer (find-file-noselect file)))

(defun qwen-companion-context-test--last ()
  "Return the newest context that was sent, after a snapshot."
  (qwen-companion-test-context-update)
  (car (last (qwen-companion-test-sent 'context))))

(defun qwen-companion-context-test--place ()
  "Return line and character of the newest context, after a snapshot."
  (let ((sent (qwen-companion-context-test--last)))
    (list (plist-get sent :line) (plist-get sent :character))))

(defun qwen-companion-context-test--text ()
  "Return the selection in the newest context, after a snapshot."
  (plist-get (qwen-companion-context-test--last) :text))

(defun qwen-companion-context-test--active ()
  "Return the name of the active file in the newest context, after a snapshot."
  (when-let* ((file (plist-get (qwen-companion-context-test--last) :active)))
    (file-name-nondirectory file)))

(defun qwen-companion-context-test--files ()
  "Return the names of the files in the newest context, after a snapshot."
  (mapcar (lambda (file) (file-name-nondirectory (plist-get file :path)))
          (plist-get (qwen-companion-context-test--last) :files)))

(defmacro qwen-companion-context-test--with (files &rest body)
  "Run BODY in a project with FILES, connected, the windows restored."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-files ,files
     (qwen-companion-test-with-backend
       (save-window-excursion
         (delete-other-windows)
         (let ((transient-mark-mode t))
           ,@body)))))

(defmacro qwen-companion-context-test--in (text &rest body)
  "Run BODY in the buffer of a.txt, which has TEXT, in the selected window."
  (declare (indent 1) (debug t))
  `(qwen-companion-context-test--with (list (list "a.txt" ,text))
     (qwen-companion-context-test--look-at "a.txt")
     ,@body))

(defun qwen-companion-context-test--go-to-terminal ()
  "Go to a terminal in a window of its own."
  (select-window (split-window))
  (switch-to-buffer (get-buffer-create "*terminal*")))

(ert-deftest qwen-companion-context-test-positions ()
  "Lines count in the whole buffer, columns in UTF-16 units from 1."
  (pcase-dolist (`(,text ,search ,line ,character)
                 '(("abc" "" 1 1)
                   ("abc" "ab" 1 3)
                   ("one\ntwo" "one\n" 2 1)
                   ("\tx = 1" "\t" 1 2)
                   ("😀日本x" "😀" 1 3)
                   ("😀日本x" "😀日本" 1 5)
                   ("é̂x" "é̂" 1 3)
                   ("ü😀x" "ü😀" 1 4)
                   ("a\n😀😀b" "a\n😀😀" 2 5)))
    (with-temp-buffer
      (insert text)
      (qwen-companion-test-go-to search)
      (should (equal (list text line character)
                     (list text
                           (qwen-companion-context-line (point))
                           (qwen-companion-context-character (point))))))))

(ert-deftest qwen-companion-context-test-line-ends-are-no-characters ()
  "They are none where Emacs hides them, and none where it shows them as ^M."
  (pcase-dolist (`(,bytes ,search ,line ,character)
                 '(("one\r\ntwo\r\n" "tw" 2 3)
                   ("one\r\ntwo\r\n" "two" 2 4)
                   ;; Both kinds in one file: Emacs keeps the carriage return.
                   ("one\r\ntwo\nthree\n" "one\r" 1 4)
                   ("one\r\ntwo\nthree\n" "one" 1 4)
                   ("a\rb\n" "a\r" 1 3)
                   ;; Nor is a byte order mark a character.
                   ("\xEF\xBB\xBFone\ntwo\n" "on" 1 3)))
    (qwen-companion-context-test--with '(("a.txt" ""))
      (let ((coding-system-for-write 'no-conversion))
        (write-region bytes nil "a.txt" nil 'silent))
      (qwen-companion-context-test--look-at "a.txt")
      (qwen-companion-test-go-to search)
      (should (equal (list bytes line character)
                     (cons bytes (qwen-companion-context-test--place))))
      ;; Nothing that is not seen is left out.
      (put-text-property (point-min) (1- (point)) 'invisible t)
      (narrow-to-region (1- (point)) (point-max))
      (qwen-companion-context-test--last)
      (should (equal (list bytes line character)
                     (cons bytes (qwen-companion-context-test--place)))))))

(ert-deftest qwen-companion-context-test-long-line-does-not-block ()
  "A snapshot at the end of a line of 1 MB takes less than 5 ms."
  (pcase-dolist (`(,what ,text ,character)
                 `(("ASCII" ,(make-string 1000000 ?a) 1000001)
                   ("one accent" ,(concat "é" (make-string 1000000 ?a)) 1000002)
                   ("emoji" ,(make-string 250000 ?😀) 500001)
                   ("emoji in text" ,(mapconcat #'identity (make-list 200000 "a😀") "") 600001)))
    (qwen-companion-context-test--in ""
      (buffer-disable-undo)
      (insert text)
      (let ((times (cl-loop repeat 7
                            do (qwen-companion-context-resend)
                            collect (car (benchmark-run 1 (qwen-companion-test-context-update))))))
        (should (equal (list what 1 character) (cons what (qwen-companion-context-test--place))))
        ;; The quickest one, and the limit stretched: the machine may be busy
        ;; with something else.
        (should (< (apply #'min times) (* 0.005 (/ qwen-companion-test-limit 120.0))))))))

(ert-deftest qwen-companion-context-test-selected-window-of-two-counts ()
  (qwen-companion-context-test--in "one\ntwo\nthree\n"
    (qwen-companion-test-go-to "three")
    (let ((lower (split-window)))
      (set-window-point lower 6)
      (should (equal '(3 6) (qwen-companion-context-test--place)))
      (select-window lower)
      (should (equal '(2 2) (qwen-companion-context-test--place)))
      ;; The window in which the user was counts, not the other one.
      (qwen-companion-context-test--go-to-terminal)
      (should (equal '(2 2) (qwen-companion-context-test--place))))))

(ert-deftest qwen-companion-context-test-active-file-and-cursor ()
  (qwen-companion-context-test--with '(("a.txt" "one\ntwo\n") ("b.txt" "b\n"))
    (qwen-companion-context-test--look-at "b.txt")
    (qwen-companion-context-test--last)
    (qwen-companion-context-test--look-at "a.txt")
    (qwen-companion-test-go-to "tw")
    (let ((sent (qwen-companion-context-test--last)))
      (should (equal (expand-file-name "a.txt") (plist-get sent :active)))
      (should (= 2 (plist-get sent :line)))
      (should (= 3 (plist-get sent :character)))
      (should-not (plist-get sent :text))
      (should (equal (list (expand-file-name "a.txt") (expand-file-name "b.txt"))
                     (mapcar (lambda (file) (plist-get file :path)) (plist-get sent :files))))
      (should (apply #'>= (mapcar (lambda (file) (plist-get file :timestamp))
                                  (plist-get sent :files)))))))

(ert-deftest qwen-companion-context-test-unchanged-is-not-sent-twice ()
  (qwen-companion-context-test--in "one\ntwo\n"
    (dotimes (_ 3)
      (qwen-companion-test-context-update))
    (should (= 1 (length (qwen-companion-test-sent 'context))))
    (forward-char)
    (qwen-companion-test-context-update)
    (should (= 2 (length (qwen-companion-test-sent 'context))))))

(ert-deftest qwen-companion-context-test-selection-survives-the-terminal ()
  "The selection stays when another window is selected, until it ends."
  (qwen-companion-context-test--with '(("a.txt" "one\ntwo\n"))
    (let ((transient-mark-mode t)
          (buffer (qwen-companion-context-test--look-at "a.txt")))
      (goto-char (point-min))
      (push-mark (point) t t)
      (forward-char 3)
      (should (equal "one" (plist-get (qwen-companion-context-test--last) :text)))
      (switch-to-buffer (get-buffer-create "*terminal*"))
      (qwen-companion-test-context-update)
      (should (equal "one" (plist-get (qwen-companion-context-payload) :text)))
      (should (equal (expand-file-name "a.txt")
                     (plist-get (qwen-companion-context-payload) :active)))
      (with-current-buffer buffer (deactivate-mark))
      (should-not (qwen-companion-context-test--text))
      ;; Its window may be closed.
      (switch-to-buffer buffer)
      (activate-mark)
      (should (equal "one" (qwen-companion-context-test--text)))
      (qwen-companion-context-test--go-to-terminal)
      (delete-other-windows)
      (should (equal "one" (qwen-companion-context-test--text))))))

(ert-deftest qwen-companion-context-test-selection-ends-when-its-text-changes ()
  "It ends once the user leaves; on return, the highlighted text counts again."
  (qwen-companion-context-test--with '(("a.txt" "one\ntwo\n"))
    (let ((buffer (qwen-companion-context-test--look-at "a.txt"))
          (file-window (selected-window)))
      (goto-char (point-min))
      (push-mark (point) t t)
      (forward-char 3)
      (insert "!")
      (should (equal "one!" (qwen-companion-context-test--text)))
      (qwen-companion-context-test--go-to-terminal)
      (should (equal "one!" (qwen-companion-context-test--text)))
      (with-current-buffer buffer
        (save-excursion (goto-char 2) (insert "n")))
      (should-not (qwen-companion-context-test--text))
      (select-window file-window)
      (should (equal "onne!" (qwen-companion-context-test--text))))))

(ert-deftest qwen-companion-context-test-selection-that-is-no-unicode ()
  "Text that JSON cannot hold is replaced, as other editors do."
  (qwen-companion-context-test--with '(("a.txt" ""))
    (let ((file (expand-file-name "a.txt")))
      (let ((coding-system-for-write 'no-conversion))
        (write-region "caf\xE9 \xC3\xA9\n" nil file nil 'silent))
      (dolist (literally '(nil t))
        (switch-to-buffer (let ((coding-system-for-read (unless literally 'utf-8)))
                            (find-file-noselect file nil literally)))
        (push-mark (point-min) t t)
        (goto-char (1- (point-max)))
        (should (equal "caf\uFFFD é" (qwen-companion-context-test--text)))
        (kill-buffer)))))

(ert-deftest qwen-companion-context-test-rectangle ()
  (qwen-companion-context-test--in "abcdef\ngh\nij日lmn\nop\tqr\nend\n"
    (qwen-companion-test-go-to "ab")
    (rectangle-mark-mode)
    (search-forward "op\tq")
    (should (equal "cdef   \n       \n日lmn  \n      q" (qwen-companion-context-test--text)))
    (switch-to-buffer (get-buffer-create "*terminal*"))
    (should (equal "cdef   \n       \n日lmn  \n      q" (qwen-companion-context-test--text)))))

(ert-deftest qwen-companion-context-test-rectangle-beyond-the-line-ends ()
  "A corner where no text is moves without point."
  (qwen-companion-context-test--in "abcdef\ngh\n"
    (rectangle-mark-mode)
    (qwen-companion-test-go-to "gh")
    (should (equal "ab\ngh" (qwen-companion-context-test--text)))
    (rectangle-forward-char 2)
    (should (equal "abcd\ngh  " (qwen-companion-context-test--text)))
    (rectangle-forward-char 1)
    (should (equal "abcde\ngh   " (qwen-companion-context-test--text)))
    (qwen-companion-context-test--go-to-terminal)
    (qwen-companion-context-resend)
    (should (equal "abcde\ngh   " (qwen-companion-context-test--text)))))

(ert-deftest qwen-companion-context-test-empty-selection-is-none ()
  (qwen-companion-context-test--in "abc\ndef\nghi\n"
    (let ((use-empty-active-region t))
      (push-mark (point) t t)
      (should (use-region-p))
      (should-not (qwen-companion-context-test--text)))
    ;; Nor has a rectangle without columns a text.
    (rectangle-mark-mode)
    (forward-line 2)
    (should (equal "" (qwen-companion-context-test--text)))))

(ert-deftest qwen-companion-context-test-rectangle-is-cut ()
  "No more lines are copied than are told."
  (qwen-companion-context-test--with
      `(("a.txt" ,(mapconcat #'identity (make-list 10000 "0123456789") "\n")))
    (qwen-companion-context-test--look-at "a.txt")
    (rectangle-mark-mode)
    (goto-char (point-max))
    (let ((copied 0)
          (original (symbol-function 'extract-rectangle-line)))
      (cl-letf (((symbol-function 'extract-rectangle-line)
                 (lambda (left right lines)
                   (cl-incf copied (- right left))
                   (funcall original left right lines))))
        (should (= 16384 (length (qwen-companion-context-test--text))))
        (should (< 14000 copied 16385))))))

(ert-deftest qwen-companion-context-test-selection-is-cut-and-plain ()
  (qwen-companion-context-test--with `(("a.txt" ,(make-string 20000 ?x)))
    (qwen-companion-context-test--look-at "a.txt")
    (put-text-property 1 20 'face 'bold)
    (goto-char (point-min))
    (push-mark (point) t t)
    (goto-char (point-max))
    (let ((text (plist-get (qwen-companion-context-test--last) :text)))
      (should (= 16384 (length text)))
      (should-not (text-properties-at 0 text)))))

(ert-deftest qwen-companion-context-test-indirect-buffer-is-its-base ()
  (qwen-companion-context-test--with '(("a.txt" "one\ntwo\n"))
    (let ((base (find-file-noselect "a.txt")))
      (switch-to-buffer (make-indirect-buffer base "indirect" t))
      (goto-char (point-max))
      (let ((sent (qwen-companion-context-test--last)))
        (should (equal (expand-file-name "a.txt") (plist-get sent :active)))
        (should (= 3 (plist-get sent :line)))))))

(ert-deftest qwen-companion-context-test-indirect-buffer-that-was-left ()
  "From the terminal, the place is still that in the indirect buffer."
  (qwen-companion-context-test--with '(("a.txt" "one\ntwo\nthree\n"))
    (let ((base (find-file-noselect "a.txt")))
      (with-current-buffer base (narrow-to-region 1 4))
      (switch-to-buffer (make-indirect-buffer base "indirect" t))
      (widen)
      (qwen-companion-test-go-to "one\n")
      (push-mark (point) t t)
      (search-forward "two\nth")
      (narrow-to-region 7 (point-max))
      (should (equal '(3 3) (qwen-companion-context-test--place)))
      ;; What is narrowed away is not selected.
      (should (equal "o\nth" (qwen-companion-context-test--text)))
      (switch-to-buffer (get-buffer-create "*terminal*"))
      (should (equal '(3 3) (qwen-companion-context-test--place)))
      (should (equal "o\nth" (qwen-companion-context-test--text)))
      (kill-buffer "indirect")
      (should (equal "a.txt" (qwen-companion-context-test--active)))
      (should (equal '(1 1) (qwen-companion-context-test--place))))))

(ert-deftest qwen-companion-context-test-org-edit-buffer-is-its-file ()
  (qwen-companion-context-test--with
      '(("a.org" "* Heading\n- item\n  #+begin_src text\n    one\n    ,* two\n      three\n  #+end_src\nend\n"))
    (let ((org-src-window-setup 'current-window)
          (org-inhibit-startup t))
      (qwen-companion-context-test--look-at "a.org")
      (qwen-companion-test-go-to "one")
      (should (equal '(4 8) (qwen-companion-context-test--place)))
      (org-edit-src-code)
      (unwind-protect
          (progn
            (should-not buffer-file-name)
            (pcase-dolist (`(,text ,line ,character)
                           '(("o" 4 6) ("one" 4 8) ("one\n" 5 6) ("* tw" 5 10) ("three" 6 12)))
              (qwen-companion-test-go-to text)
              (should (equal (list text line character)
                             (cons text (qwen-companion-context-test--place)))))
            (should (equal "a.org" (qwen-companion-context-test--active)))
            (push-mark (point) t t)
            (search-backward "two")
            (should (equal "two\n  three" (qwen-companion-context-test--text)))
            (narrow-to-region (point) (point-max))
            (should (equal '(5 8) (qwen-companion-context-test--place)))
            (should-not (qwen-companion-context-unsaved-p))
            (widen)
            ;; Lines that Org does not know of yet: the last one it does.
            (qwen-companion-test-append "\nfour\nfive\nsix")
            (should (equal '(6 12) (qwen-companion-context-test--place)))
            (should (qwen-companion-context-unsaved-p)))
        (org-edit-src-exit)))))

(ert-deftest qwen-companion-context-test-no-frame-no-active-file ()
  (qwen-companion-context-test--in "one\n"
    (qwen-companion-test-context-update)
    (cl-letf (((symbol-function 'qwen-companion-context-frame-p) #'ignore))
      (should-not (plist-get (qwen-companion-context-payload) :active)))))

(ert-deftest qwen-companion-context-test-closed-file-goes ()
  (qwen-companion-context-test--with '(("a.txt" "one\n") ("b.txt" "b\n"))
    (let ((remaining (expand-file-name "a.txt")))
      (qwen-companion-context-test--look-at "a.txt")
      (qwen-companion-test-context-update)
      (qwen-companion-context-test--look-at "b.txt")
      (qwen-companion-test-context-update)
      (kill-buffer "b.txt")
      (should (equal (list remaining)
                     (mapcar (lambda (file) (plist-get file :path))
                             (plist-get (qwen-companion-context-payload) :files)))))))

(ert-deftest qwen-companion-context-test-other-buffers-leave-the-last-file-active ()
  (qwen-companion-context-test--with '(("a.txt" "one\ntwo\n") ("b.txt" "b\n"))
    (qwen-companion-context-test--look-at "b.txt")
    (qwen-companion-test-context-update)
    (qwen-companion-context-test--look-at "a.txt")
    (forward-line)
    (qwen-companion-test-context-update)
    (dolist (buffer (list (get-buffer-create "*Help*")
                          (get-buffer-create "*qwen-companion log*")
                          (dired-noselect ".")))
      (switch-to-buffer buffer)
      (should (equal "a.txt" (qwen-companion-context-test--active)))
      (should (equal '(2 1) (qwen-companion-context-test--place))))
    (select-window (minibuffer-window))
    (should (equal "a.txt" (qwen-companion-context-test--active)))
    (should (equal '("a.txt" "b.txt") (qwen-companion-context-test--files)))))

(ert-deftest qwen-companion-context-test-focus-times-are-real ()
  "The time is when the file got the focus, not when it was last told."
  (qwen-companion-context-test--with '(("a.txt" "") ("b.txt" ""))
    (cl-flet ((times () (mapcar (lambda (file) (plist-get file :timestamp))
                                (plist-get (qwen-companion-context-test--last) :files))))
      (let ((now 1000))
        (cl-letf (((symbol-function 'qwen-companion-context--milliseconds)
                   (lambda (&optional _) now)))
          (qwen-companion-context-test--look-at "a.txt")
          (should (equal '(1000) (times)))
          (setq now 2000)
          (qwen-companion-context-test--look-at "b.txt")
          (should (equal '(2000 1000) (times)))
          (setq now 3000)
          (insert "more")
          (should (equal '(2000 1000) (times)))
          (qwen-companion-context-test--look-at "a.txt")
          (should (equal '(3000 2000) (times))))))))

(ert-deftest qwen-companion-context-test-files-from-before-have-their-times ()
  (qwen-companion-context-test--with '(("a.txt" "") ("b.txt" "") ("c.txt" ""))
    (find-file-noselect "c.txt")
    (with-current-buffer (find-file-noselect "a.txt") (setq buffer-display-time '(0 5)))
    (with-current-buffer (find-file-noselect "b.txt") (setq buffer-display-time '(0 7)))
    (switch-to-buffer "*scratch*")
    (qwen-companion-context-enable)
    (should (equal '(("b.txt" . 7000) ("a.txt" . 5000))
                   (mapcar (lambda (file) (cons (file-name-nondirectory (plist-get file :path))
                                                (plist-get file :timestamp)))
                           (plist-get (qwen-companion-context-test--last) :files))))))

(ert-deftest qwen-companion-context-test-other-names ()
  "A file follows its buffer to another name, and goes when it has none."
  (qwen-companion-context-test--with '(("a.txt" "one\n") ("b.txt" "b\n"))
    (qwen-companion-context-enable)
    (qwen-companion-context-test--look-at "b.txt")
    (qwen-companion-test-context-update)
    (qwen-companion-context-test--look-at "a.txt")
    (should (equal "a.txt" (qwen-companion-context-test--active)))
    (set-visited-file-name "renamed.txt" t)
    (should (equal "renamed.txt" (qwen-companion-context-test--active)))
    (let ((inhibit-message t)) (write-file "written.txt"))
    (should (equal "written.txt" (qwen-companion-context-test--active)))
    (let ((inhibit-message t)) (revert-buffer t t))
    (should (equal "written.txt" (qwen-companion-context-test--active)))
    (set-visited-file-name nil)
    (should (equal "b.txt" (qwen-companion-context-test--active)))
    (should (equal '("b.txt") (qwen-companion-context-test--files)))))

(ert-deftest qwen-companion-context-test-first-save-is-told ()
  "Whether a file is on disk is for the Python process to see again."
  (qwen-companion-context-test--with nil
    (qwen-companion-context-enable)
    (qwen-companion-context-test--look-at "new.txt")
    (insert "text")
    (qwen-companion-test-context-update)
    (let ((sent (length (qwen-companion-test-sent 'context)))
          (inhibit-message t))
      (save-buffer)
      (qwen-companion-test-context-update)
      (should (= (1+ sent) (length (qwen-companion-test-sent 'context)))))))

(ert-deftest qwen-companion-context-test-a-name-that-is-no-text ()
  "It cannot be told; while it has the focus, no file is active."
  (qwen-companion-context-test--in "one\n"
    (qwen-companion-test-context-update)
    (with-temp-buffer
      (setq buffer-file-name "/tmp/caf\x3FFFE9")
      (switch-to-buffer (current-buffer))
      (should-not (qwen-companion-context-test--active))
      (should (equal '("a.txt") (qwen-companion-context-test--files)))
      (setq buffer-file-name nil))))

(ert-deftest qwen-companion-context-test-secret-text-stays-here ()
  "A remote or hidden file is named, for the rules, but its text is not sent."
  (qwen-companion-context-test--with '(("a.txt" "one\n"))
    (qwen-companion-context-enable)
    (qwen-companion-context-test--look-at "a.txt")
    (set-mark 1)
    (goto-char 3)
    (setq mark-active t transient-mark-mode t)
    (qwen-companion-test-context-update)
    (should (equal "on" (plist-get (qwen-companion-context-test--last) :text)))
    (qwen-companion-toggle-exclusion)
    (qwen-companion-test-context-update)
    (let ((sent (qwen-companion-context-test--last)))
      (should (equal "a.txt" (file-name-nondirectory (plist-get sent :active))))
      (should (equal 'hide (plist-get (car (plist-get sent :files)) :exposure)))
      (should-not (plist-member sent :line))
      (should-not (plist-member sent :text)))
    (qwen-companion-toggle-exclusion)
    (qwen-companion-test-context-update)
    (should (equal "on" (plist-get (qwen-companion-context-test--last) :text)))
    (qwen-companion-toggle-exclusion t)
    (qwen-companion-test-context-update)
    (should (equal 'show (plist-get (car (plist-get (qwen-companion-context-test--last) :files))
                                    :exposure)))
    (with-temp-buffer
      (insert "secret")
      (setq buffer-file-name "/ssh:example.org:/tmp/b.txt")
      (switch-to-buffer (current-buffer))
      (qwen-companion-test-context-update)
      (let ((sent (qwen-companion-context-test--last)))
        (should (equal "/ssh:example.org:/tmp/b.txt" (plist-get sent :active)))
        (should-not (plist-member sent :line)))
      (setq buffer-file-name nil))))

(ert-deftest qwen-companion-context-test-options-are-told-first-and-when-they-change ()
  (qwen-companion-context-test--with '(("a.txt" "one\n"))
    (let ((qwen-companion-excluded-files nil)
          (qwen-companion-trust nil)
          (qwen-companion-tell-all-roots nil))
      (qwen-companion-context-test--look-at "a.txt")
      (qwen-companion-context-resend)
      (should (equal '(settings context)
                     (cl-remove-if-not (lambda (method) (memq method '(settings context)))
                                       (reverse (mapcar #'car qwen-companion-test-calls)))))
      (qwen-companion-test-context-update)
      (should (= 1 (length (qwen-companion-test-sent 'settings))))
      (setq qwen-companion-excluded-files '("*.secret")
            qwen-companion-trust '("~/work")
            qwen-companion-tell-all-roots t)
      (let ((auth-sources '("~/passwords.gpg" password-store (:source "~/more") (:source default))))
        (qwen-companion-test-context-update)
        (should (equal (list :patterns '("*.secret")
                             :auth-sources '("~/passwords.gpg" "~/more")
                             :all-roots t
                             :trusted nil
                             :trusted-directories (list (expand-file-name "~/work"))
                             :no-reviews nil
                             :settings-layer t
                             :review-edits 'all
                             :questions t
                             :journal t
                             :tell-agents t
                             :tell-changes t
                             :commit-notes nil
                             :token-limit nil
                             :size-limit qwen-companion-diff-size-limit)
                       (car (last (qwen-companion-test-sent 'settings))))))
      (let ((qwen-companion-diff-style nil))
        (qwen-companion-test-context-update)
        (should (plist-get (car (last (qwen-companion-test-sent 'settings))) :no-reviews)))
      (pcase-dolist (`(,option ,key ,value)
                     '((qwen-companion-tell-agents :tell-agents nil)
                       (qwen-companion-review-edits :review-edits open)
                       (qwen-companion-settings-layer :settings-layer nil)))
        (cl-progv (list option) (list value)
          (qwen-companion-test-context-update)
          (should (eq value (plist-get (car (last (qwen-companion-test-sent 'settings))) key))))))))

(ert-deftest qwen-companion-context-test-exclusion-needs-a-file ()
  "A file may hide, but not show itself."
  (should (safe-local-variable-p 'qwen-companion-exposure 'hide))
  (should-not (safe-local-variable-p 'qwen-companion-exposure 'show))
  (with-temp-buffer
    (rename-buffer "no file" t)
    (qwen-companion-test-refused "no file is not visiting a file" (qwen-companion-toggle-exclusion))))

(ert-deftest qwen-companion-context-test-mode-line-marks-unsaved-text ()
  "The file that a CLI is told of, only while there is a CLI."
  (qwen-companion-context-test--with '(("a.txt" "one\n") ("b.txt" "b\n"))
    (qwen-companion-test-with-state 'ready
      (qwen-companion-test-with-sessions '((:id "1"))
        (qwen-companion-context-test--look-at "a.txt")
        (qwen-companion-test-context-update)
        (should (equal " Qwen[1]" (qwen-companion-test-lighter)))
        (insert "x")
        (let ((text (qwen-companion-test-lighter)))
          (should (equal " Qwen[1]*" text))
          (should (string-search "unsaved" (get-text-property (1- (length text)) 'help-echo text))))
        (switch-to-buffer (get-buffer-create "*terminal*"))
        (qwen-companion-test-context-update)
        (should (equal " Qwen[1]*" (qwen-companion-test-lighter)))
        (qwen-companion-test-with-sessions nil
          (should (equal " Qwen" (qwen-companion-test-lighter))))
        (qwen-companion-context-test--look-at "b.txt")
        (qwen-companion-test-context-update)
        (should (equal " Qwen[1]" (qwen-companion-test-lighter)))))))

(ert-deftest qwen-companion-context-test-enable-disable-is-symmetric ()
  (cl-flet ((hooks ()
              ;; Those of anybody that have a function of ours.
              (let (found)
                (mapatoms (lambda (symbol)
                            (when (and (string-match-p "-\\(?:hook\\|functions\\)\\'" (symbol-name symbol))
                                       (default-boundp symbol))
                              (push (cons symbol (default-value symbol)) found))))
                (sort (mapcar (lambda (hook) (format "%S" hook)) found) #'string<))))
    (let ((before (hooks))
          (idle (length timer-idle-list)))
      (qwen-companion-context-enable)
      (should (> (length timer-idle-list) idle))
      (should-not (equal before (hooks)))
      (qwen-companion-context-disable)
      (should (equal before (hooks)))
      (should (= idle (length timer-idle-list))))))

(provide 'qwen-companion-context-test)
;;; qwen-companion-context-test.el ends here
