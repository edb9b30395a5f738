;;; qwen-companion-disk-test.el --- Tests of reading, watching and checking files  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-test-helper)

(defun qwen-companion-disk-test--write (file text &optional coding)
  "Write TEXT to FILE in CODING as a CLI does, with a time of its own."
  (let ((coding-system-for-write (or coding 'utf-8-unix)))
    (make-directory (file-name-directory (expand-file-name file)) t)
    (write-region text nil file nil 'silent)
    ;; Later than what a buffer has seen, however coarse the clock.
    (set-file-times file (time-add nil 2))))

(defmacro qwen-companion-disk-test-with (files &rest body)
  "Run BODY with FILES; the wait for a write is short."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-files ,files
     (unwind-protect
         (let ((inhibit-message t)) ,@body)
       (qwen-companion-disk-forget-all))))

(ert-deftest qwen-companion-disk-test-an-expected-write-is-told ()
  "When it begins, has come, and is expected no longer."
  (qwen-companion-disk-test-with '(("a.txt" "one\n"))
    (let* ((path (expand-file-name "a.txt"))
           (told nil)
           (tell (lambda (what)
                   (lambda (file)
                     (should (equal path file))
                     (push (cons what (qwen-companion-disk-expected-p file)) told))))
           (qwen-companion-disk-expecting-functions (list (funcall tell 'expecting)))
           (qwen-companion-disk-written-functions (list (funcall tell 'written))))
      (qwen-companion-disk-expect path "two\n")
      (qwen-companion-disk-test--write "a.txt" "other\n")
      (qwen-companion-disk-test--write "a.txt" "two\n")
      (qwen-companion-test-wait-for (qwen-companion-test-written-p))
      (should (equal '((expecting . t) (written . t) (expecting . nil)) (reverse told))))))

(ert-deftest qwen-companion-disk-test-other-files-of-the-directory-cost-no-reading ()
  (qwen-companion-disk-test-with '(("a.txt" "one\n"))
    (let* ((path (expand-file-name "a.txt"))
           (seen 0)
           (watch (file-notify-add-watch
                   default-directory '(change)
                   (lambda (event)
                     (when (eq 'created (nth 1 event))
                       (cl-incf seen))))))
      (set-file-times path (time-subtract nil 60))
      (qwen-companion-test-counting read 'qwen-companion-disk-bytes
        (qwen-companion-disk-expect path "two\n")
        (dotimes (number 30)
          (write-region "x" nil (format "%d.txt" number) nil 'silent))
        (qwen-companion-test-wait-for (= seen 30))
        (should (= 1 read))
        ;; What has come is seen all the same.
        (qwen-companion-disk-test--write "a.txt" "two\n")
        (qwen-companion-test-wait-for (qwen-companion-test-written-p)))
      (file-notify-rm-watch watch))))

(ert-deftest qwen-companion-disk-test-a-write-that-keeps-the-time-is-found-at-the-end ()
  (qwen-companion-disk-test-with '(("a.txt" "one\n"))
    (let ((time (time-subtract nil 60)))
      (set-file-times "a.txt" time)
      (should (equal
               '(written "within 0 s")
               (qwen-companion-disk-test--result
                "two\n"
                (lambda ()
                  (write-region "two\n" nil "a.txt" nil 'silent)
                  (set-file-times "a.txt" time))))))))

(ert-deftest qwen-companion-disk-test-stamp-of-a-link-is-that-of-its-file ()
  (qwen-companion-disk-test-with '(("a.txt" "one\n"))
    (make-symbolic-link "a.txt" "b.txt")
    (let* ((link (expand-file-name "b.txt"))
           (stamp (qwen-companion-disk-stamp link)))
      (should (equal stamp (qwen-companion-disk-stamp (expand-file-name "a.txt"))))
      (qwen-companion-disk-test--write link "two\n")
      (should-not (equal stamp (qwen-companion-disk-stamp link))))))

;; An undo of 3,000 files spent a third of its time on that.
(ert-deftest qwen-companion-disk-test-real-names-of-many-files-are-found-once-a-moment ()
  (qwen-companion-disk-test-with '(("one/a.txt" "") ("two/a.txt" "") ("three/a.txt" ""))
    (let ((asked nil)
          (find (symbol-function 'file-truename)))
      (cl-letf (((symbol-function 'file-truename)
                 (lambda (name &rest more)
                   (when (string-match-p "\\`[a-z]+/\\'" name)
                     (push name asked))
                   (apply find name more))))
        (let ((qwen-companion-disk-truename-cache (list nil))
              ;; The moment must not be over on a busy machine.
              (qwen-companion-disk--truename-seconds 3600))
          (dolist (file '("one/a.txt" "two/a.txt" "one/b.txt" "three/a.txt" "two/a.txt"))
            (qwen-companion-disk-buffers file))
          ;; Only the last two are kept.
          (should (equal '("two/" "three/" "two/" "one/") asked))
          (let ((qwen-companion-disk--truename-seconds -1))
            (should (equal (funcall find "two/") (qwen-companion-disk-true-directory "two/")))
            (should (= 5 (length asked)))))
        (qwen-companion-disk-buffers "two/a.txt")
        (qwen-companion-disk-buffers "two/a.txt")
        (should (= 7 (length asked)))))))

(ert-deftest qwen-companion-disk-test-new-file-in-new-directories ()
  (qwen-companion-disk-test-with nil
    (let ((path (expand-file-name "x/y/z.txt")))
      (qwen-companion-disk-expect path "new\n")
      (should (qwen-companion-disk-expected-p path))
      (qwen-companion-disk-test--write path "new\n")
      (qwen-companion-test-wait-for (qwen-companion-test-written-p))
      (should-not (qwen-companion-disk-expected-p path)))))

(defun qwen-companion-disk-test--result (text write &rest keys)
  "Expect TEXT in the file a.txt, call WRITE, and return the final report.
KEYS are further ones of what is expected."
  (let* ((qwen-companion-disk--patience 0.3)
         (told nil)
         (done (lambda (&rest arguments) (setq told arguments))))
    (qwen-companion-disk-expect-soon
     (apply #'qwen-companion-disk-expect (expand-file-name "a.txt") text (or keys (list :done done))))
    (funcall write)
    (qwen-companion-test-wait-for (qwen-companion-test-written-p))
    told))

(ert-deftest qwen-companion-disk-test-without-a-watch-it-looks-once ()
  (qwen-companion-disk-test-with '(("a.txt" "one\n"))
    (cl-letf (((symbol-function 'file-notify-add-watch)
               (lambda (&rest _) (signal 'file-notify-error '("No watch to be had")))))
      (should (equal '(unchanged "(checked once, after 0 s)")
                     (qwen-companion-disk-test--result "two\n" #'ignore)))
      (should (eq 'written
                  (car (qwen-companion-disk-test--result
                        "two\n"
                        (lambda () (qwen-companion-disk-test--write "a.txt" "two\n")))))))))

(ert-deftest qwen-companion-disk-test-how-a-write-that-is-expected-ends ()
  "Without one, with another text than is expected, and with none that is known."
  (qwen-companion-disk-test-with '(("a.txt" "one\n"))
    (let* ((told nil)
           (qwen-companion-disk-written-functions (list (lambda (file) (push file told)))))
      (should (equal '(unchanged "within 0 s") (qwen-companion-disk-test--result "two\n" #'ignore)))
      ;; After an answer in the terminal nothing may come, which is no news.
      (qwen-companion-test-silent
        (should-not (qwen-companion-disk-test--result nil #'ignore :optional t)))
      (should-not told)
      (should (equal '(changed "within 0 s")
                     (qwen-companion-disk-test--result "two\n" (lambda () (qwen-companion-disk-test--write "a.txt" "other\n")))))
      (should (equal (list (expand-file-name "a.txt")) told)))))

(ert-deftest qwen-companion-disk-test-holds-a-text-in-any-encoding ()
  "It holds text that Emacs would decode wrongly, such as Latin-2 as Latin-1."
  (qwen-companion-disk-test-with nil
    (let ((path (expand-file-name "a.txt")))
      (dolist (case '(("caf\u00e9\npommes\n\u00e0 la carte\n"
                       utf-8 utf-8-with-signature iso-latin-1 windows-1252
                       utf-16le-with-signature utf-16be-with-signature)
                      ("\u0161koda\n\u017eivot\n" iso-latin-2 windows-1250)
                      ("\u65e5\u672c\npommes\n\u304b\u306a\n" japanese-shift-jis euc-jp iso-2022-jp)
                      ("one\ntwo" utf-8 utf-16le-with-signature)
                      ("" utf-8)))
        (dolist (coding (cdr case))
          (dolist (line-end '(unix dos))
            (let ((text (car case)))
              (qwen-companion-disk-test--write
               path text (coding-system-change-eol-conversion coding line-end))
              (dolist (same (list text (string-replace "\n" "\r\n" text) (concat "\ufeff" text)))
                (should (qwen-companion-disk-holds-p path same))
                (let ((inhibit-eol-conversion t))
                  (should (qwen-companion-disk-holds-p path same))))
              (dolist (other (list (concat text "\n") (concat "x" text) (concat text "\u00e8")))
                (should-not (qwen-companion-disk-holds-p path other))))))))))

(ert-deftest qwen-companion-disk-test-mixed-line-ends-are-another-text ()
  (qwen-companion-disk-test-with nil
    (let ((path (expand-file-name "a.txt")))
      (dolist (bytes '("a\r\nb\n" "a\nb\r\n" "a\r\r\nb\n" "a\nb\r\r\n" "\r\na\r\nb"))
        (qwen-companion-disk-test--write path bytes)
        (should (qwen-companion-disk-holds-p path bytes))
        (should-not (qwen-companion-disk-holds-p path "a\nb\n")))
      ;; Nor is a text held that its encoding cannot hold.
      (qwen-companion-disk-test--write path "caf\u00e9 ?\n" 'iso-latin-1)
      (should-not (qwen-companion-disk-holds-p path "caf\u00e9 \u0161\n")))))

(ert-deftest qwen-companion-disk-test-unified-line-ends ()
  "CR LF is LF where all lines end so, in any encoding."
  (qwen-companion-disk-test-with nil
    (let ((path (expand-file-name "a.txt"))
          (none 'utf-8-unix))
      (pcase-dolist (`(,text ,line-end ,shown . ,codings)
                     `(("one\r\ntwo\r\n" "\r\n" "one\ntwo\n" ,none utf-8-with-signature-unix
                        utf-16le-with-signature-unix iso-latin-1-unix)
                       ("caf\u00e9\r\n\0\r\r\n\r\n" "\r\n" "caf\u00e9\n\0\r\n\n" ,none
                        utf-8-with-signature-unix)
                       ("caf\u00e9\r\n\r\n" "\r\n" "caf\u00e9\n\n" utf-16be-with-signature-unix
                        iso-latin-1-unix)
                       ("1\r\n2\r\n3\r\n4" "\r\n" "1\n2\n3\n4" ,none)
                       ;; Emacs itself looks at the first lines only.
                       ("1\r\n2\r\n3\r\n4\n" mixed "1\r\n2\r\n3\r\n4\n" ,none
                        utf-8-with-signature-unix iso-latin-1-unix)
                       ("1\n2\r\n" mixed "1\n2\r\n" ,none)
                       ("1\r2\r3\r4\r" nil "1\r2\r3\r4\r" ,none)
                       ("1\r2\r3\r4\n" "\n" "1\r2\r3\r4\n" ,none)
                       ("1\r2\r3\r4\r\n" "\r\n" "1\r2\r3\r4\n" ,none)
                       ("one\ntwo" "\n" "one\ntwo" ,none iso-latin-1-unix)
                       ("one" nil "one" ,none)
                       ("" nil "" ,none)))
        (dolist (coding codings)
          (qwen-companion-disk-test--write path text coding)
          (dolist (inhibit-eol-conversion '(nil t))
            (with-temp-buffer
              (buffer-enable-undo)
              (let ((used (qwen-companion-disk-insert-unified path)))
                (should (equal (list text coding line-end shown)
                               (list text coding (cdr used) (buffer-string))))
                (should (equal (eq coding 'utf-8-with-signature-unix)
                               (and (car used)
                                    (eq 'utf-8-with-signature (coding-system-base (car used)))))))
              (should-not buffer-undo-list)))))
      (with-temp-buffer
        (should (equal '(nil) (qwen-companion-disk-insert-unified
                               (expand-file-name "none.txt"))))))))

(ert-deftest qwen-companion-disk-test-no-long-text-is-encoded-in-vain ()
  "In UTF-8 its size tells, and no other name of UTF-8 is tried."
  (qwen-companion-disk-test-with nil
    (let* ((path (expand-file-name "a.txt"))
           (text (concat "na\u00efve\n" (make-string 5000 ?x) "\n")))
      (qwen-companion-disk-test--write path (concat text "end\n") 'utf-8-unix)
      (cl-letf* ((encode (symbol-function 'encode-coding-string))
                 ((symbol-function 'encode-coding-string)
                  (lambda (string &rest arguments)
                    (should (< (length string) 2000))
                    (apply encode string arguments))))
        (should-not (qwen-companion-disk-holds-p path text))))))

(ert-deftest qwen-companion-disk-test-a-file-of-another-size-is-not-read ()
  "Reading a large file would block Emacs."
  (qwen-companion-disk-test-with nil
    (let ((path (expand-file-name "a.txt")))
      (dolist (coding '(utf-8-unix utf-8-dos utf-16le-with-signature-dos))
        (qwen-companion-disk-test--write path "one\ntwo\nthree\n" coding)
        (cl-letf (((symbol-function 'qwen-companion-disk-bytes) (lambda (_path) (error "Read"))))
          (dolist (other '("one\ntwo\nthree\n\n" "one\ntwo\n" "one\r\ntwo" ""))
            (should-not (qwen-companion-disk-holds-p path other))))))))

(defmacro qwen-companion-disk-test-watching (path calls &rest body)
  "Run BODY while PATH is watched; CALLS counts how often that is notified."
  (declare (indent 2) (debug t))
  `(let* ((,calls 0)
          (watch (qwen-companion-disk-watch ,path (lambda () (cl-incf ,calls)))))
     (unwind-protect
         (progn ,@body)
       (qwen-companion-disk-unwatch watch)
       (should-not (qwen-companion-test-watched))
       (should-not qwen-companion-disk--events-timer))))

(ert-deftest qwen-companion-disk-test-a-burst-notifies-a-watch-a-few-times ()
  "Thousands of events are not taken one by one, and nothing is missed."
  (qwen-companion-disk-test-with '(("a.txt" "one\n"))
    (qwen-companion-disk-test-watching (expand-file-name "a.txt") calls
      (qwen-companion-test-with-polling 0.1 5
        (dotimes (number 500)
          (write-region "x" nil (format "%d.new" number) nil 'silent))
        (qwen-companion-test-wait-for (> calls 0))
        (should (< calls 5))
        (qwen-companion-test-wait-for (qwen-companion-test-notified-p))
        (let ((before calls))
          (qwen-companion-disk-test--write "a.txt" "two\n")
          (qwen-companion-test-wait-for (> calls before)))))))

(ert-deftest qwen-companion-disk-test-a-directory-that-comes-back-is-watched-again ()
  (qwen-companion-disk-test-with '(("d/a.txt" "one\n"))
    (qwen-companion-disk-test-watching (expand-file-name "d/a.txt") calls
      (delete-directory "d" t)
      (qwen-companion-test-wait-for (> calls 0))
      (dolist (text '("two\n" "three\n"))
        (let ((before calls))
          (qwen-companion-disk-test--write "d/a.txt" text)
          (qwen-companion-test-wait-for (> calls before))
          (qwen-companion-test-wait-for (null qwen-companion-disk--pending))
          (should (equal (list (expand-file-name "d/")) (qwen-companion-test-watched))))))))

(ert-deftest qwen-companion-disk-test-an-error-keeps-no-other-watch-from-its-notice ()
  (qwen-companion-disk-test-with '(("a.txt" "one\n"))
    (qwen-companion-disk-test-watching (expand-file-name "a.txt") calls
      (let ((bad (qwen-companion-disk-watch (expand-file-name "a.txt")
                                            (lambda () (error "Broken")))))
        (unwind-protect
            (progn
              (qwen-companion-disk-test--write "a.txt" "two\n")
              (qwen-companion-test-wait-for (> calls 0)))
          (qwen-companion-disk-unwatch bad))))))

(ert-deftest qwen-companion-disk-test-a-file-that-arrives-whole-is-not-being-written ()
  "Beside another watch of the directory too, such as one for a language server.
Filenotify then reports a rename as a new file too."
  (qwen-companion-disk-test-with '(("a.txt" "one\n") ("else/where.txt" "two\n"))
    (let ((other (file-notify-add-watch default-directory '(change) #'ignore)))
      (unwind-protect
          (dolist (arrive (list (lambda ()
                                  (write-region "two\n" nil "a.tmp" nil 'silent)
                                  (rename-file "a.tmp" "a.txt" t))
                                (lambda ()
                                  (rename-file "else/where.txt" "a.txt" t))
                                (lambda ()
                                  (delete-file "a.txt")
                                  (write-region "three\n" nil "else/link.txt" nil 'silent)
                                  (add-name-to-file "else/link.txt" "a.txt"))))
            (let* ((written nil)
                   (path (expand-file-name "a.txt"))
                   (watch (qwen-companion-disk-watch path (lambda () (setq written t)))))
              (funcall arrive)
              (qwen-companion-test-wait-for written)
              (should-not (qwen-companion-disk-open-p watch))
              ;; That is known of one that is written here.
              (let ((program (start-process-shell-command
                              "writer" nil "exec > a.txt; echo half; read line; echo whole")))
                (qwen-companion-test-wait-for (qwen-companion-disk-being-written-p watch))
                (process-send-string program "\n")
                (qwen-companion-test-wait-for (not (qwen-companion-disk-open-p watch))))
              (qwen-companion-disk-unwatch watch)))
        (file-notify-rm-watch other)))))

(ert-deftest qwen-companion-disk-test-a-rename-between-other-watches-is-known ()
  "Filenotify reports it as a rename to the first and the last of them only."
  (qwen-companion-disk-test-with '(("a.txt" "one\n"))
    (let* ((before (file-notify-add-watch default-directory '(change) #'ignore))
           (watch (qwen-companion-disk-watch (expand-file-name "a.txt") #'ignore))
           (after (file-notify-add-watch default-directory '(change) #'ignore)))
      (unwind-protect
          (progn
            (rename-file "a.txt" "b.txt")
            (should (equal (expand-file-name "b.txt")
                           (qwen-companion-test-wait-for
                            (qwen-companion-disk-new-name watch)))))
        (mapc #'file-notify-rm-watch (list before after))
        (qwen-companion-disk-unwatch watch)))))

(provide 'qwen-companion-disk-test)
;;; qwen-companion-disk-test.el ends here
